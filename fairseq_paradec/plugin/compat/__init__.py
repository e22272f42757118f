"""Fixes for the current fairseq and torch: one small, independent function per fault.

Every fault occurs with fairseq-fixed 0.12.3.1, torch 2.13.0, numpy 2.4 and hydra-core 1.3.2; the
docstring of a fix names the versions that it depends on. A fix changes nothing where the fault is
absent, and ``apply`` is idempotent.
"""

from .activations import make_swish_a_function
from .beams import tell_beam_size
from .checkpoints import (
    allow_fairseq_checkpoints,
    explain_checkpoint_errors,
    keep_last_norms,
    read_model_files,
)
from .command_line import (
    check_arguments,
    default_validation_task,
    honour_bf16,
    honour_shards,
    infer_moses_languages,
    remember_user_dir,
)
from .data import divide_into_buckets, refuse_torn_data
from .encoding import drop_marks_in_hub, read_codes_in_utf8, run_commands_in_utf8
from .ending import end_commands
from .given import remember_given
from .hub import refuse_unknown_overrides
from .printing import (
    print_usage_errors,
    quote_fairseq,
    report_translated_sentences,
    set_log_level,
    silence_warnings,
)
from .repeats import forbid_repeats
from .unknowns import copy_without_a_file, take_alignments


def apply() -> None:
    """Apply every fix."""
    run_commands_in_utf8()
    make_swish_a_function()
    allow_fairseq_checkpoints()
    read_model_files()
    explain_checkpoint_errors()
    keep_last_norms()
    silence_warnings()
    set_log_level()
    report_translated_sentences()
    remember_user_dir()
    default_validation_task()
    remember_given()
    infer_moses_languages()
    check_arguments()
    refuse_torn_data()
    divide_into_buckets()
    read_codes_in_utf8()
    drop_marks_in_hub()
    honour_bf16()
    forbid_repeats()
    take_alignments()
    copy_without_a_file()
    tell_beam_size()
    honour_shards()
    refuse_unknown_overrides()
    print_usage_errors()
    quote_fairseq()
    end_commands()
