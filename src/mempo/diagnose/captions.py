"""One sentence under each figure: what it means; what is healthy; what to change."""

from __future__ import annotations

CAPTIONS: dict[str, tuple[str, str]] = {
    "curves": (
        "Training, step by step",
        "Healthy: the score rises and settles, format stays above 0.9, notes and turns settle, and memory's share of "
        "the credit lies between 0.05 and 0.7; if notes shrink or turns fall while the score does not rise, the signal "
        "pays for that: set memory.pool=turn and memory.threshold=none.",
    ),
    "by_turn": (
        "P, r and credit by turn",
        "Left, how well the gold answer is predicted from the note, its baseline and the history; right, the mean "
        "credit of each turn, healthy within the grey band for the credit given: a slope praises early or late turns "
        "whatever their notes say, and memory.pool=turn removes it.",
    ),
    "control": (
        "Is the note read, or is a short context easy?",
        "P(answer) given the note, another question's note of about the same length, an empty note and the whole "
        "history: healthy is a note clearly above both controls and near the history or above; else raise "
        "sft.probe_share (the probe is not understood), or look at what notes leave out.",
    ),
    "credit": (
        "Who pays",
        "Groups by which credit they get, and the gold tokens that the threshold lets into P: healthy is a majority "
        "with outcome credit, and all tokens kept; where only notes pay, the dense signal drowns the outcome "
        "(memory.gate=when_group_varies), and where tokens are hidden set memory.threshold=none.",
    ),
    "correlation": (
        "What r goes with, within a question and turn",
        "Each point is a note: r should rise with completeness (above +0.2), not fall with the outcome (above -0.1), "
        "and not follow length (within ±0.5); else set memory.threshold=none and memory.baseline=none, or "
        "memory.length_penalty against long notes.",
    ),
    "faithfulness": (
        "Do notes say what the tools said, and keep it?",
        "Healthy: answers seen that the note holds above 0.8, answers lost again and facts that no observation held "
        "below 0.1; what notes drop calls for a higher memory.weight or sft.expert.lossless_share, what they invent "
        "for a KL term (rl.loss.kl=k3).",
    ),
    "repetition": (
        "What is new in a note",
        "The share of new words in a note, of notes that copy the one before (healthy below 0.3), and of notes that "
        "stand in another question's rollouts too (below 0.2): memory.baseline=previous_note takes the credit from "
        "copies, a KL term or a lower memory.weight holds templates off.",
    ),
    "collapse": (
        "Notes over training",
        "How different the rollouts of a group are in notes and searches (0 all alike), and how well notes of "
        "different questions compress beside the questions themselves: a variety of notes below 0.05 before the score "
        "has risen, or a compression above 2, is collapse: lower rl.optim.lr, or raise rl.loss.kl_coef.",
    ),
}
"""`{name of the figure: (title, caption)}`"""
