"""Reading an experiment's YAML: small, one value a key, nothing that runs, grows or hides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from fairseq_floater.errors import shown
from fairseq_floater.files import read_limited

# Ours take 5 kB; PyYAML reads some 100 kB a second.
LARGEST = 1 << 16


class _PlainLoader(yaml.SafeLoader):
    """Safe YAML without aliases, of which a few lines can make gigabytes, and without double keys."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        if self.check_event(yaml.AliasEvent):
            mark = self.peek_event().start_mark
            raise yaml.MarkedYAMLError(problem="write values out, no *alias", problem_mark=mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key in (key for key, _ in node.value if isinstance(key, yaml.ScalarNode)):
            if key.value in seen:
                problem = f"the key {shown(key.value)} comes twice"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            seen.add(key.value)
        return super().construct_mapping(node, deep=deep)


def read_config(path: Path) -> Any:
    """What the file holds, as plain Python values.

    Raises:
        OSError: it cannot be read.
        UserError: it is larger than :data:`LARGEST`.
        ValueError: it is no YAML, or has aliases or the same key twice; one sentence.
    """
    try:
        text = read_limited(path, LARGEST).decode("utf-8-sig")
        return yaml.load(text, _PlainLoader)
    except (yaml.YAMLError, ValueError) as error:
        words = str(error).replace(' in "<unicode string>",', ",").split()
        raise ValueError(" ".join(words).rstrip(".")) from None
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    # PyYAML lets the errors of what it calls through: of `!!bool x`, `!!timestamp x` and the like.
    except (LookupError, AttributeError, TypeError, OverflowError):
        raise ValueError("a value is not what its !!tag says") from None
