#!/bin/sh
# install.sh installs redis-server, the Postgres server binaries and PgBouncer with apt, if
# this is root on a machine with apt-get and they are missing. Else it does nothing and says
# nothing. It always succeeds: without them devstack has further rungs, or says what to do.
#
# None is left running or started at boot, and no Postgres cluster is made: devstack
# runs the binaries itself, on folders and ports of its own.
set -eu

[ "$(id -u)" = 0 ] && command -v apt-get >/dev/null || exit 0

have_redis() {
	[ -n "${REDIS_URL:-}" ] || command -v redis-server >/dev/null || command -v valkey-server >/dev/null
}

have_postgres() {
	[ -n "${DATABASE_URL:-}${PG_BIN:-}" ] || command -v postgres >/dev/null && return
	for bin in /usr/lib/postgresql/*/bin/postgres "$(pg_config --bindir 2>/dev/null || true)/postgres"; do
		[ -x "$bin" ] && return
	done
	return 1
}

have_pgbouncer() { command -v pgbouncer >/dev/null || [ -x /usr/sbin/pgbouncer ]; }

packages=
have_redis || packages="$packages redis-server"
have_postgres || packages="$packages postgresql"
have_pgbouncer || packages="$packages pgbouncer"
[ -n "$packages" ] || exit 0
echo "installing$packages with apt-get" >&2

# Both files are for the time of the installation only, and not touched if they are there.
policy=/usr/sbin/policy-rc.d                                      # "no service may start"
cluster=/etc/postgresql-common/createcluster.d/onceward-none.conf # "no main cluster"
made=
cleanup() { for f in $made; do rm -f "$f"; done; }
trap cleanup EXIT
trap 'exit 1' HUP INT TERM
if [ ! -e "$policy" ]; then
	made="$policy"
	printf '#!/bin/sh\nexit 101\n' >"$policy"
	chmod 755 "$policy"
fi
if [ ! -e "$cluster" ]; then
	made="$made $cluster"
	mkdir -p "${cluster%/*}"
	echo 'create_main_cluster = false' >"$cluster"
fi

log=$(mktemp)
made="$made $log"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # a list of words
if ! { apt-get -qq update && apt-get -qq -y --no-install-recommends install $packages; } >"$log" 2>&1 </dev/null; then
	tail -n 15 "$log" >&2
	echo "apt-get could not install$packages, going on without" >&2
	exit 0
fi
# The packages enabled their services for the next boot.
for service in redis-server pgbouncer; do
	case $packages in *$service*)
		if [ -d /run/systemd/system ]; then systemctl -q disable $service || true; fi ;;
	esac
done
