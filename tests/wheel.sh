#!/usr/bin/env bash
# The wheel as a user gets it: built from the source archive, so that both are whole, installed with every extra from
# the newest versions the index has, and tried out.
# Nothing is locked but torch, whose unpinned wheel brings gigabytes of CUDA.
set -euo pipefail
here=$(cd "$(dirname "$0")/.." && pwd)
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
python=${PYTHON:-python3}

"$python" -m venv "$place/venv"
pip=("$place/venv/bin/python" -m pip --disable-pip-version-check)
"$python" -m venv "$place/builder"
"$place/builder/bin/python" -m pip --disable-pip-version-check install -q hatchling
(cd "$here" && "$place/builder/bin/python" -m hatchling build -t sdist -d "$place")
tar -tzf "$place"/undrift-*.tar.gz > "$place/held"
for file in LICENSE README.md examples/own_csv.py docs/index.md tests/wheel.sh; do
    grep -q "/$file$" "$place/held" || { echo "the source archive lacks $file" >&2; exit 1; }
done
"${pip[@]}" wheel -q --no-deps -w "$place" "$place"/undrift-*.tar.gz
wheel=$(ls "$place"/undrift-*.whl)
extras=$("$python" -c 'import sys, tomllib
extras = tomllib.load(open(sys.argv[1], "rb"))["project"]["optional-dependencies"]
print(",".join(name for name in extras if name != "dev"))' "$here/pyproject.toml")
"${pip[@]}" install -q "$(grep -m 1 '^torch==' "$here/requirements.lock")"
cd "$place"
undrift() { echo "\$ undrift $*"; "$place/venv/bin/undrift" "$@"; }
small=(--clients 4 --rounds 2)

with() {
    echo "== wheel with [$1]"
    "${pip[@]}" install -q --upgrade --upgrade-strategy eager "$wheel[$1]" "$(grep -m 1 '^torch==' "$here/requirements.lock")"
    "${pip[@]}" check
    "${pip[@]}" list 2>/dev/null | grep -iE "^(click|typer|rich|torch|numpy|matplotlib|scikit-learn|pyarrow|${1//,/|}) "
    undrift --version | grep -F "undrift $(sed -n 's/^version = "\(.*\)"/\1/p' "$here/pyproject.toml"),"
    undrift > /dev/null
    undrift --help > /dev/null
    undrift run --algorithm fedtrip --help > /dev/null
    undrift algorithms > /dev/null
    undrift models > /dev/null
    undrift data > /dev/null
    undrift partition --clients 4 > /dev/null
    undrift run -a fedtrip --mu 0.1 "${small[@]}"
    undrift compare -a fedavg,scaffold --seeds 1..2 "${small[@]}"
    undrift show > /dev/null
    undrift report -f -o report.html
    undrift plot curves -f -o curves.png
    undrift export -f -o runs.parquet
    test -s report.html -a -s curves.png -a -s runs.parquet
    local code=0
    undrift run -a fedtrp 2> said || code=$?
    grep -q "did you mean 'fedtrip'" said && test $code -eq 2
    code=0
    undrift run --algoritm fedtrip 2> said || code=$?
    grep -q -- "--algorithm" said && test $code -eq 2
}

with all  # alone first: another extra may hold a package back
with "$extras"
undrift run -a fedtrip "${small[@]}" --track tensorboard > /dev/null
undrift run -a fedprox "${small[@]}" --track mlflow > /dev/null
undrift sweep -a fedprox --over mu=0.1..1 --search optuna --trials 2 --seeds 1 "${small[@]}"

echo "== notebooks"
"$place/venv/bin/python" "$here/tests/notebooks.py"

echo "== without the extra of the command line"
"${pip[@]}" uninstall -q -y typer
code=0; undrift --version 2> said || code=$?
grep -q "pip install 'undrift\[cli\]'" said && test $code -eq 2
"$place/venv/bin/python" -c "import undrift; print(undrift.run(rounds=2, clients=4))"
echo "the wheel works"
