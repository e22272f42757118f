"""The twin's form of a TargetOrder."""

from __future__ import annotations

from dataclasses import asdict

from reference.target_order import Spec

from fairseq_paradec.target_order import TargetOrder


def spec_of(order: TargetOrder) -> Spec:
    """The same order for the twin."""
    return Spec(**asdict(order))
