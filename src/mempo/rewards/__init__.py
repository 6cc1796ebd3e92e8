"""What a rollout and its notes are worth: the outcome score, and the memory reward of each note."""

from mempo.config.rewards import LookaheadSettings, MemorySettings, OutcomeSettings, ProbeSettings
from mempo.rewards.memory import score_notes
from mempo.rewards.note_reward import Evidence, NoteScore, note_reward
from mempo.rewards.outcome import AnswerScore, CustomScore, OutcomeScore, outcome_score, score_answer
from mempo.rewards.probe import NoSignal, Probe, build_probe

__all__ = [
    "AnswerScore",
    "CustomScore",
    "Evidence",
    "LookaheadSettings",
    "MemorySettings",
    "NoSignal",
    "NoteScore",
    "OutcomeScore",
    "OutcomeSettings",
    "Probe",
    "ProbeSettings",
    "build_probe",
    "note_reward",
    "outcome_score",
    "score_answer",
    "score_notes",
]
