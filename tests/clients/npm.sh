# What the scripts here share, sourced by them: packages from npm. Where node or the packages cannot
# be had, the test is skipped: exit code 77, and the reason.

skip() {
  echo "skipped: $1"
  exit 77
}

# npm_install SECONDS WHAT: installs what package.json of the present folder names.
npm_install() {
  command -v node >/dev/null || skip "there is no node"
  command -v npm >/dev/null || skip "there is no npm"
  timeout "$1" npm install --no-audit --no-fund --silent >npm.log 2>&1 ||
    skip "npm cannot install the $2; see $PWD/npm.log"
}
