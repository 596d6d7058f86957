#!/usr/bin/env bash
# Make a virtual environment that runs everything in this repository:
#     PYTHON=python3.12 tools/setup.sh VENV
#     PYTHON=.venv/bin/python tools/setup.sh VENV torch==2.11.0 triton==3.6.0
#     PYTHON=python3.12 tools/setup.sh VENV site
# Versions come from constraints.txt. With releases: what PYTHON has already, with these in place of
# its own; nothing else is installed again. With "site": what builds the documentation.
set -euo pipefail
cd "$(dirname "$0")/.."

# Python compiles what it imports, when it does: of torch that is a small part.
export PIP_NO_COMPILE=1
# Who has no way to an index shall not wait for many attempts.
export UV_HTTP_RETRIES=1
# What builds the project is pinned too.
export UV_BUILD_CONSTRAINT=constraints.txt

venv=$1
shift
python=${PYTHON:-python3}
py=$venv/bin/python
log=$venv/setup.log

say() { echo "setup: $*"; }
die() { say "$@" >&2; exit 1; }
pinned() { sed -n "s/^$1==\([^ ]*\).*/\1/p" constraints.txt; }
metadata() { "$py" -c "from importlib.metadata import requires, version; $1" 2>/dev/null; }
has_nvcc() { command -v nvcc >/dev/null || [ -x "${CUDA_HOME:-/usr/local/cuda}/bin/nvcc" ]; }
has_gpu() { [[ "$(nvidia-smi -L 2>/dev/null)" == GPU* ]]; }

has_uv() { "$py" -m uv --version >/dev/null 2>&1 || "$py" -m pip install -q -c constraints.txt uv 2>>"$log"; }
# Whether pip was told to look elsewhere, or on no index at all.
has_own_index() { [[ "$("$py" -m pip config list)" =~ [.](no-index|index-url)= ]]; }
pip_constraints() { echo "${PIP_CONSTRAINT:-}" "$("$py" -m pip config get global.constraint 2>/dev/null)"; }

# Arguments are those of `pip install`. uv takes a quarter of pip's time, but doesn't read pip's
# configuration: its constraints are handed on, and where it names an index, or uv fails, pip it is.
install() {
    local file options=(--python "$py")
    if ! has_own_index && has_uv; then
        for file in $(pip_constraints); do options+=(-c "$file"); done
        if "$py" -m uv pip install "${options[@]}" "$@"; then return; fi
        say "uv can't install it; asking pip"
    fi
    "$py" -m pip install "$@"
}

make_venv() {
    local oldest version
    command -v "$python" >/dev/null || die "there is no $python; name a Python: make ... PYTHON=python3.12"
    oldest=$(sed -n 's/^requires-python = ">=3\.\([0-9]*\)"$/\1/p' pyproject.toml)
    version=$("$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
    "$python" -c "import sys; sys.exit(sys.version_info < (3, $oldest))" ||
        die "$python is Python $version, and 3.$oldest or newer is needed: make ... PYTHON=python3.12"

    # Kept where it works and has the same Python; pip then brings it up to date.
    if [ "$("$py" -V 2>&1)" = "$("$python" -V 2>&1)" ]; then return; fi
    if ! "$python" -c 'import ensurepip, venv' 2>/dev/null; then install_venv_module "python$version-venv"; fi
    say "making $venv with Python $version"
    "$python" -m venv --clear "$venv"
}

# Debian and Ubuntu ship the venv module apart from Python.
install_venv_module() {
    if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
        die "$python cannot make virtual environments; run: sudo apt-get install $1"
    fi
    say "installing $1"
    apt-get install -qq -y "$1" >/dev/null 2>&1 || { apt-get update -qq; apt-get install -qq -y "$1" >/dev/null; }
}

# Without a GPU the CPU build is wanted: first from where the user's pip looks, then from where
# uv knows to look. A plain "pip install torch" brings gigabytes of CUDA.
install_torch() {
    local torch
    torch=torch==$(pinned torch)
    if metadata "assert version('torch').split('+')[0] == '${torch#*==}'"; then return; fi
    if has_gpu; then
        say "installing $torch with CUDA, some gigabytes"
    else
        say "no GPU found; installing the CPU build of $torch"
        if install_cpu_build "$torch"; then return; fi
        say "no CPU build from pip or uv ($log says why); installing the CUDA build:" \
            "some gigabytes, which nothing else here needs"
    fi
    install "$torch"
}

# Arguments after the requirement are those of `pip install`.
install_cpu_build() {
    local torch=$1
    shift
    if "$py" -m pip install "$@" "$torch+cpu" 2>"$log"; then return; fi
    has_uv && "$py" -m uv pip install --python "$py" --torch-backend=cpu "$@" "$torch" 2>>"$log"
}

# The project, its extras, and the pinned Triton; or what torch's CUDA build pins.
install_project() {
    local constraints=$venv/constraints.txt extras=dev,cuda
    if [ "$(uname -s)" = Linux ] && ! has_nvcc; then extras+=,nvcc; fi
    say "installing tritemm and its extras ($extras)"
    if metadata "assert any(r.startswith('triton') for r in requires('torch'))"; then
        grep -v -e '^triton==' -e '^nvidia-cuda-runtime==' constraints.txt >"$constraints"
    else
        cp constraints.txt "$constraints"
    fi
    install -c "$constraints" -e ".[$extras]"
}

# Its own packages come first on its path, and then those of $python, pip and CUDA's libraries among
# them, which pip shall not take for its own. --no-deps: torch pins a Triton, and libraries that are
# there in another release.
install_over() {
    export PIP_IGNORE_INSTALLED=1
    local release beneath='import sys
for path in sys.path:
    if path.endswith("-packages"): print(f"import site; site.addsitedir({path!r})")'
    say "making $venv: what $python has, and $*"
    "$python" -m venv --clear --without-pip "$venv"
    "$python" -c "$beneath" >"$("$py" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/beneath.pth"
    for release; do
        if [[ "$release" == torch==* ]] && ! metadata 'assert any("cuda" in r for r in requires("torch"))'; then
            install_cpu_build "$release" --no-deps || die "no CPU build of $release; $log says why"
        else
            install --no-deps "$release"
        fi
    done
}

# What the extra `site` names, and not the project, which would bring torch.
install_site() {
    local names
    "$py" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        die "the site's tools need Python 3.11 or newer: make site PYTHON=python3.12"
    names=$(sed -n 's/^site = \[\(.*\)\]$/\1/p' pyproject.toml | tr -d '",')
    say "installing $names"
    # shellcheck disable=SC2086
    install -c constraints.txt $names
}

if [ "$*" = site ]; then
    make_venv
    install_site
    exit
elif [ $# -gt 0 ]; then
    install_over "$@"
else
    make_venv
    install_torch
    install_project
fi
say "$venv has $(metadata 'print(*(f"{p} {version(p)}" for p in ("torch", "triton", "numpy")), sep=", ")')"
