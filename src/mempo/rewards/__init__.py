"""What a rollout and its notes are worth: the outcome score, and the memory reward of each note."""

from mempo.rewards.memory import MemorySettings, NoteScore, no_signal_counts, score_notes
from mempo.rewards.outcome import (
    AnswerScore,
    CustomScore,
    OutcomeScore,
    OutcomeSettings,
    outcome_score,
    score_answer,
)
from mempo.rewards.probe import NoSignal, Probe, ProbeSettings, build_probe

__all__ = [
    "AnswerScore",
    "CustomScore",
    "MemorySettings",
    "NoSignal",
    "NoteScore",
    "OutcomeScore",
    "OutcomeSettings",
    "Probe",
    "ProbeSettings",
    "build_probe",
    "no_signal_counts",
    "outcome_score",
    "score_answer",
    "score_notes",
]
