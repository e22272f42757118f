"""scripts/queue.sh: what is done stays done; kill, pause and failure."""

import os
import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from support.commands import ROOT, wait_until

from fairseq_paradec.cli.main import parse
from fairseq_paradec.lab.commands import benchmark
from fairseq_paradec.training import plan, schedule


class Runs:
    """A queue and the folder of its runs, whose path has a space and a quote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "it's a folder"
        self.folder.mkdir()
        self.queue, self.runs, self.out = (self.folder / name for name in ("my queue", "runs", "o"))
        self.env = os.environ | {"OUT": str(self.out)}

    def write(self, *lines: str) -> None:
        self.queue.write_text("".join(f"{line}\n" for line in lines))

    def command(self, *flags: str) -> list[str]:
        queue = () if {"--pause", "--continue"} & set(flags) else (str(self.queue),)
        return [str(ROOT / "scripts/queue.sh"), *queue, *flags, "--runs", str(self.runs)]

    def run(self, *flags: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*flags), capture_output=True, text=True, env=self.env)

    def start(self) -> subprocess.Popen[bytes]:
        """Start it, and wait until an experiment has said something."""
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        process = subprocess.Popen(self.command(), env=self.env, **quiet)
        wait_until(self.output)
        return process

    def output(self) -> list[str]:
        return self.out.read_text().splitlines() if self.out.exists() else []

    def states(self) -> dict[str, str]:
        table = self.run("--list").stdout.splitlines()[1:]
        return {line[:41].strip(): line[41:66].strip() for line in table}


@pytest.fixture
def runs(tmp_path):
    return Runs(tmp_path)


def has_ended(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_the_projects_own_queue_is_a_queue(runs):
    runs.queue = ROOT / "scripts/experiments.queue"
    result = runs.run("--list")
    assert result.stderr == "" and result.stdout.count(" not run ") > 100


QUEUE = (ROOT / "scripts" / "experiments.queue").read_text().splitlines()
#: Those that need another machine are comments.
LINE = re.compile(r"(?:# )?[\w.-]+(?:\[.*?\])?  (.*)")
COMMANDS = [found[1] for found in map(LINE.match, QUEUE) if found]


def test_the_projects_own_commands_are_read_by_what_they_name(tmp_path):
    """paradec by its parsers, recipes up to the data folder, which is not there."""
    recipes, trainings = set(), 0
    for command in COMMANDS:
        for part in command.split(" && "):
            program, *words = shlex.split(part)
            if program == "scripts/train.sh":
                _, args = parse(["train", *words])
                given = plan._given(args.flags)
                updates = given.max_update or args.updates
                if given.warmup_updates and updates:
                    schedule.check(given.warmup_updates, updates, "--updates")
                trainings += 1
            elif program.endswith("/paradec"):
                module, args = parse(words)
                if module is benchmark:
                    benchmark.read(args)
            elif program.startswith("scripts/train_"):
                recipes.add((program, *words))
    assert trainings > 60 and len(recipes) > 20
    for program, *words in recipes:
        given = {"cwd": tmp_path, "capture_output": True, "text": True}
        done = subprocess.run([ROOT / program, *words], **given)
        assert (done.returncode, "missing DATA: data-bin/" in done.stderr) == (2, True), done.stderr


def test_the_other_direction_is_made_of_data_behind_a_link(tmp_path):
    """A path with .. behind a link to a folder leads away from it."""
    (tmp_path / "data-bin").mkdir()
    elsewhere = tmp_path / "a disk" / "data"
    elsewhere.mkdir(parents=True)
    (tmp_path / "data-bin" / "multi30k.en-de").symlink_to(elsewhere)
    for name in ("dict.en.txt", "dict.de.txt", "train.en-de.de.bin", "valid.en-de.en.idx"):
        (elsewhere / name).write_text(name)
    (command,) = (text for text in COMMANDS if "mkdir -p data-bin/multi30k.de-en" in text)
    subprocess.run(["bash", "-c", command], cwd=tmp_path, check=True)
    made = {p.name: p.read_text() for p in (tmp_path / "data-bin" / "multi30k.de-en").iterdir()}
    assert made == {
        "dict.en.txt": "dict.en.txt",
        "dict.de.txt": "dict.de.txt",
        "train.de-en.de.bin": "train.en-de.de.bin",
        "valid.de-en.en.idx": "valid.en-de.en.idx",
    }


def test_runs_in_order_and_only_once(runs):
    runs.write(
        "# a comment",
        "",
        """one  echo "o'n \\$e"  'a  b' >>"$OUT"; pwd""",
        'two[after=one]  echo two >>"$OUT"   ',
    )
    result = runs.run()
    assert result.returncode == 0 and "starts" in result.stderr, result.stderr
    assert runs.output() == ["o'n $e a  b", "two"]
    assert str(ROOT) in (runs.runs / "one" / "log").read_text().splitlines()
    again = runs.run()
    assert again.returncode == 0 and "starts" not in again.stderr and len(runs.output()) == 2
    assert runs.states() == {"one": "done", "two": "done"}
    runs.write('three  echo three >>"$OUT"', 'four  echo four >>"$OUT"')
    assert runs.run("--only", "four").returncode == 0
    assert runs.output()[2:] == ["four"]
    pause = runs.run("--pause")
    assert (pause.returncode, pause.stderr) == (0, "")  # nothing to pause


def test_a_failure_is_tried_again_and_a_changed_command_only_on_request(runs):
    bad, good = 'bad  echo bad >>"$OUT"; exit 7', 'good  echo {} >>"$OUT"'
    runs.write(bad, 'needs[after=bad]  echo needs >>"$OUT"', good.format("good"))
    result = runs.run()
    assert result.returncode == 1 and runs.output() == ["bad", "good"]
    assert runs.states() == {"bad": "failed (7)", "needs": "not run", "good": "done"}
    assert "needs: waits for bad (failed (7))" in result.stderr
    assert (runs.runs / "bad" / "failed").read_text().splitlines()[0] == "7"
    runs.write(bad, good.format("new"))
    result = runs.run()
    assert "good: its command has changed" in result.stderr and "--rerun good" in result.stderr
    assert runs.output() == ["bad", "good", "bad"]
    runs.run("--rerun", "good")
    assert runs.output()[-1] == "new"


def test_what_is_kept_counts_as_done_by_its_present_command(runs):
    """Nothing runs again, and what waits for it no longer waits; what has failed stays so."""
    runs.write('one  echo one >>"$OUT"', 'other  echo other >>"$OUT"', "bad  exit 7")
    assert runs.run().returncode == 1
    renamed = 'one  echo >>"$OUT" one', 'other  echo >>"$OUT" other', "bad  exit 8"
    runs.write(*renamed, 'next[after=one]  echo next >>"$OUT"')
    assert "next: waits for one (done by another command)" in runs.run().stderr
    assert "one: done, by its present command too" in runs.run("--keep", "on*").stderr
    another = {"other": "done by another command", "bad": "failed (8)", "next": "not run"}
    assert runs.states() == {"one": "done"} | another
    seconds = (runs.runs / "one" / "done").read_text().splitlines()[1]
    assert seconds.isdecimal() and runs.output() == ["one", "other"]
    runs.run("--only", "next")
    assert runs.output()[2:] == ["next"]


@pytest.mark.slow
@pytest.mark.parametrize("number, status", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_stopped_queue_leaves_no_mark_and_no_process(runs, number, status):
    """It waits for the experiment that it ends, which may tidy up."""
    runs.write(
        """one  trap 'sleep 0.5; echo tidy >>"$OUT"; exit 3' TERM; echo $$ >>"$OUT"; """
        '[ -e "$OUT.go" ] || sleep 600 & wait',
        'two  echo two >>"$OUT"',
    )
    process = runs.start()
    pid = int(runs.output()[0])
    process.send_signal(number)
    assert process.wait(20) == status
    wait_until(lambda: has_ended(pid))
    assert runs.output()[1:] == ["tidy"]
    assert runs.states() == {"one": "not run", "two": "not run"}
    Path(f"{runs.out}.go").touch()
    assert runs.run().returncode == 0 and len(runs.output()) == 4


@pytest.mark.slow
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGHUP])  # or its terminal is closed
def test_an_experiment_outlives_its_queue_and_is_not_started_twice(runs, sent):
    wait = 'while [ ! -e "$OUT.go" ]; do sleep 0.02; done'
    runs.write(f'one  echo one >>"$OUT"; {wait}', 'two  echo two >>"$OUT"')
    process = runs.start()
    process.send_signal(sent)
    assert process.wait(20) == -sent
    assert "one: runs in another queue" in runs.run().stderr
    assert runs.states() == {"one": "running", "two": "done"}
    Path(f"{runs.out}.go").touch()
    wait_until(lambda: runs.states()["one"] == "done")
    assert runs.run().returncode == 0 and runs.output() == ["one", "two"]


@pytest.mark.slow
def test_pause_stops_all_processes_of_an_experiment(runs):
    # The ticking process is a child of the experiment's shell.
    runs.write('one  (while true; do date +%N >>"$OUT"; sleep 0.02; done); true')
    process = runs.start()
    assert "pause: one" in runs.run("--pause").stderr
    ticks = len(runs.output())
    time.sleep(0.5)
    assert len(runs.output()) - ticks <= 1  # one may have been on its way
    ticks = len(runs.output())
    assert runs.states() == {"one": "running"}
    assert "continue: one" in runs.run("--continue").stderr
    wait_until(lambda: len(runs.output()) > ticks + 2)
    runs.run("--pause")
    process.terminate()  # ends what is paused, too
    assert process.wait(20) == 143
    wait_until(lambda: runs.states() == {"one": "not run"})
