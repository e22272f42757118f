"""Fixes of text that fairseq 0.12 reads and writes in the locale's encoding."""

import argparse
import sys
from pathlib import Path
from typing import Any

from fairseq import hub_utils
from fairseq.data.encoders.subword_nmt_bpe import SubwordNMTBPE

from ...utf8 import restart_in_utf8, without_marks
from .patching import Function, around


def run_commands_in_utf8() -> None:
    """Let fairseq's commands read and write UTF-8 in every locale.

    Fault: fairseq 0.12 takes flags, standard streams, logs, BPE codes and alignment dictionaries in
    the locale's encoding, and other files in UTF-8, so that another locale gives another
    translation.
    """
    program = Path(sys.argv[0] if getattr(sys, "argv", None) else "")
    if program.name.startswith("fairseq-") or program.parent.name == "fairseq_cli":
        restart_in_utf8()


def read_codes_in_utf8() -> None:
    """Read the codes of ``--bpe subword_nmt`` in UTF-8, also in a program of the user's.

    Fault: fairseq 0.12 lets argparse open the file, in the locale's encoding.
    """

    @around(SubwordNMTBPE, "__init__", fix="read_codes_in_utf8")
    def init(original: Function, self: SubwordNMTBPE, cfg: Any) -> None:
        from subword_nmt import apply_bpe

        @around(apply_bpe, "create_parser", fix="read_codes_in_utf8")
        def create_parser(original: Function, *args: Any, **kwargs: Any) -> Any:
            parser = original(*args, **kwargs)
            for action in parser._actions:
                if isinstance(action.type, argparse.FileType) and action.dest == "codes":
                    action.type = argparse.FileType("r", encoding="utf-8-sig")
            return parser

        original(self, cfg)


def drop_marks_in_hub() -> None:
    """Drop byte order marks of the hub's sentences; of fairseq-interactive ``explain_input`` does.

    Fault: fairseq 0.12 translates U+FEFF as a character.
    """

    @around(hub_utils.GeneratorHubInterface, "tokenize", fix="drop_marks_in_hub")
    def tokenize(original: Function, self: Any, sentence: str) -> str:
        return original(self, without_marks(sentence))
