"""The group: what it lists, what it imports, how it fails."""

import errno
import subprocess
import sys

import click
import pytest

import kvlake
from kvlake.base.errors import ConfigError
from kvlake.cli import ls as ls_module
from kvlake.cli.main import COMMANDS, main


def test_lists_its_commands(run):
    listed = run("--help").output
    assert all(name in listed for name in COMMANDS)


def test_says_its_version(run):
    assert kvlake.__version__ in run("--version").output


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself_and_speaks_json_or_talks(run, name):
    text = run(name, "--help").output
    assert text.count("\n") > 5
    assert "--json" in text or name == "chat"


def test_help_imports_nothing_heavy():
    code = (
        "import sys; from click.testing import CliRunner; from kvlake.cli.main import main, COMMANDS\n"
        "for name in COMMANDS: assert CliRunner().invoke(main, [name, '-h']).exit_code == 0\n"
        "print({'torch', 'transformers', 'numpy', 'matplotlib', 'rich', 'psutil'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


def test_an_unknown_command_is_a_usage_error(run):
    assert "No such command" in run("lss", code=2).output


def test_our_errors_are_one_line_and_exit_1(run, tmp_path):
    result = run("ls", tmp_path / "nowhere", code=1)
    assert result.stderr.startswith("Error: there is no store at")
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("no"), 1),
        (PermissionError(errno.EACCES, "not yours"), 1),
        (BrokenPipeError(errno.EPIPE, "gone"), 1),
    ],
)
def test_errors_of_the_system_end_the_same_way(run, store, monkeypatch, error, code):
    def fail(path):
        raise error

    monkeypatch.setattr(ls_module, "look", fail)
    run("ls", store, code=code)


def test_what_is_not_ours_is_not_swallowed(store, monkeypatch):
    monkeypatch.setattr(ls_module, "look", lambda path: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main(["ls", str(store)], standalone_mode=False)


def test_the_group_answers_none_for_what_it_does_not_know():
    assert main.get_command(click.Context(main), "nothing") is None
