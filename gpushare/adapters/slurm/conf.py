"""Lines of Slurm's configuration, and the programs that slurmd calls."""

from collections.abc import Mapping, Sequence
from typing import Any

Json = dict[str, Any]


def gres(devices: Sequence[Mapping[str, Any]], files: Sequence[str], per_device: int) -> str:
    """Returns gres.conf. `devices`: the node API's, in its order, which is that of Slurm's numbers. `files`: paths of
    their device nodes. `per_device`: shards."""
    lines = [
        "# Written by `gpushare adapter slurm conf`. The order of the lines is that of the devices' numbers.",
        "AutoDetect=off",
    ]
    lines += [f"Name=gpu File={file}" for file in files]
    lines += [f"Name=shard Count={per_device} File={file}" for file in files]
    assert len(files) == len(devices)
    return "\n".join(lines) + "\n"


def node(name: str, count: int, per_device: int) -> str:
    """Returns the settings for slurm.conf, for the cluster and for the node."""
    return (
        "# For slurm.conf:\n"
        "# GresTypes=gpu,shard\n"
        "# PrologFlags=Alloc\n"
        f"# NodeName={name} Gres=gpu:{count},shard:{count * per_device}\n"
    )


def scripts(gpushare: Sequence[str], options: Sequence[str], directory: str) -> Mapping[str, str]:
    """Returns the scripts by name. slurmd calls each without arguments. `directory`: where prologs write files for
    their jobs' tasks."""
    command = " ".join(map(_quoted, gpushare))
    more = " ".join(map(_quoted, options))
    head = "#!/bin/sh\n# Written by `gpushare adapter slurm scripts`.\n"
    return {
        "prolog": f"{head}exec {command} adapter slurm prolog {more}\n",
        "epilog": f"{head}exec {command} adapter slurm epilog {more}\n",
        # Runs as the user, for each task and for a batch script. It sources the shell file that the prolog wrote as
        # root.
        "task-prolog": (
            f"{head}"
            f"said={_quoted(directory)}/$SLURM_JOB_ID\n"
            'if [ -r "$said" ]; then\n'
            '  . "$said"\n'
            'elif [ -n "$SLURM_SHARDS_ON_NODE$SLURM_GPUS_ON_NODE" ]; then\n'
            '  echo "print gpushare: this job has no share, as its prolog did not run: tell the administrator"\n'
            "  exit 1\n"
            "fi\n"
        ),
    }


def task(env: Mapping[str, str], unset: Sequence[str]) -> str:
    """Returns the shell text by which the task prolog changes a job's variables; libraries go before the user's."""
    lines = [f'echo "unset {name}"' for name in unset]
    for name, value in env.items():
        if name in ("LD_PRELOAD", "LD_LIBRARY_PATH"):
            lines.append(f'echo "export {name}={_inner(value)}${{{name}:+:${name}}}"')
        else:
            lines.append(f'echo "export {name}={_inner(value)}"')
    return "\n".join(lines) + "\n"


def refusal(reason: str) -> str:
    """As `task`, for a job without a share: its tasks print the reason and do not start."""
    return f'echo "print gpushare: {_inner(reason)}"\nexit 1\n'


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _inner(text: str) -> str:
    """Escapes text for use inside double quotes, on one line."""
    plain = "".join(" " if char < " " or char == "\x7f" else char for char in text)
    return "".join("\\" + char if char in '\\"$`' else char for char in plain)
