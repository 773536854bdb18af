#!/usr/bin/env bash
# The lowest versions that pyproject.toml allows, in an environment of their own: tests/lowest.sh [PYTEST'S ARGUMENTS]
# Without arguments the fast tests. TORCH=2.6.0 takes that torch instead of the locked one (requirements-lowest.lock says why).
set -euo pipefail
cd "$(dirname "$0")/.."
lock=requirements-lowest.lock
venv=.venv-lowest
torch=${TORCH:+torch==$TORCH}
torch=${torch:-$(grep -m 1 '^torch==' $lock)}
pip=("$venv/bin/python" -m pip --disable-pip-version-check)

if ! cmp -s <(cat $lock pyproject.toml; echo "$torch") "$venv/.made-from"; then
    rm -rf "$venv"
    "${PYTHON:-python3}" -m venv "$venv"
    "${pip[@]}" install -q "$torch"
    "${pip[@]}" install -q -r <(grep -v '^torch==' $lock)
    "${pip[@]}" install -q --no-deps --no-build-isolation -e .
    "${pip[@]}" check
    (cat $lock pyproject.toml; echo "$torch") > "$venv/.made-from"
fi
"$venv/bin/python" -m pytest -n auto -p no:cacheprovider "$@"
