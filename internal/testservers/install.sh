#!/bin/sh
# Installs what the tests need on Debian, if anything is missing:
# the servers, promtool for the alert rules, Chromium for the status page, a C
# compiler for the race detector, make, and the certificates without which Go
# downloads no module. As root it installs; as anybody else it says what to
# install, and fails. With the argument "servers" it is the servers alone, which
# is all that the demo needs.
#
# Nothing here uses the services that Debian's packages start, nor the database
# cluster that postgresql-15 creates: while they are being installed, none is
# started, and cluster creation is switched off.
set -eu

packages=
need() { packages="$packages${packages:+ }$1"; }

has_postgres() {
	[ -n "${WALRELAY_TEST_PGBIN:-}" ] && return
	for server in /usr/lib/postgresql/*/bin/postgres; do
		[ -x "$server" ] && return
	done
	return 1
}
# Some servers are in directories that only root's PATH has.
has() { PATH="$PATH:/usr/sbin:/sbin" command -v "$1" >/dev/null 2>&1; }

has_postgres || need postgresql-15
[ -n "${WALRELAY_TEST_REDIS:-}" ] || has redis-server || need redis-server
[ -e /etc/ssl/certs/ca-certificates.crt ] || need ca-certificates
if [ "${1:-}" != servers ]; then
	has pgbouncer || need pgbouncer
	has promtool || need prometheus
	[ -n "${WALRELAY_TEST_CHROMIUM:-}" ] || has chromium-headless-shell || has chromium || need chromium-headless-shell
	has make || need make
	has gcc || need gcc
	[ -e /usr/include/stdlib.h ] || need libc6-dev
fi

[ -n "$packages" ] || exit 0

install="apt-get install -y --no-install-recommends $packages"
if [ "$(id -u)" -ne 0 ]; then
	echo "Missing: $packages" >&2
	echo "As root: apt-get update && $install" >&2
	exit 1
fi
if ! has apt-get; then
	echo "Missing: $packages; this machine has no apt-get to install them with" >&2
	exit 1
fi

# The package reads its directory of settings before it creates a cluster.
# Whether a service is started, Debian asks a policy; a machine that has one is
# left to it. What is written here is removed again, so that the next package
# does as its owner wants.
settings=/etc/postgresql-common/createcluster.d
policy=/usr/sbin/policy-rc.d
mkdir -p "$settings"
written="$settings/walrelay.conf"
trap 'rm -f $written' EXIT
trap 'exit 1' HUP INT TERM
echo 'create_main_cluster = false' >"$settings/walrelay.conf"
if [ ! -e "$policy" ]; then
	written="$written $policy"
	printf '#!/bin/sh\nexit 101\n' >"$policy" # "forbidden by policy"
	chmod 755 "$policy"
fi

export DEBIAN_FRONTEND=noninteractive
# A machine that has package lists may have them from long ago: then some
# package is not found, or no longer there, and new lists are worth a try.
$install </dev/null || {
	apt-get update </dev/null
	$install </dev/null
}
