#!/usr/bin/env bash
# Erlang: a global:trans() inside another one of the same lock frees the lock, and others enter while the outer one goes on
#
# Run:      Erlang/OTP 25.2.3 (Debian 12): global:trans({orders, self()}, …), and in it another one, by the same process for the same lock.
#           Before, inside and after the inner one, and after the outer one, another process asks by set_lock without retries. The same
#           with an inner one for another lock.
# Guess:    refused as long as the outer one goes on. The lock is reentrant, as the inner one enters, so it is counted.
# Seen:     a lock that one has is granted once more, and not counted; the first del_lock, at the end of the inner one, frees it. The outer one
#           goes on without a lock, and hears of nothing.
# Matters:  a function that locks what it needs and is called by one that does so, too, ends the exclusion on all nodes, without an error.
#           "May I enter again?" and "does the inner end free it?" are two questions, and a test of the first passes.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

debian erlang-base=1:25.2.3+dfsg-1+deb12u4
export ROOTDIR=$folder/debian/usr/lib/erlang EMU=beam PROGNAME=erl
export BINDIR=$ROOTDIR/erts-13.1.5/bin
cat >main.erl <<'END'
-module(main).
-export([main/0]).

other(When) ->
    Main = self(),
    {Pid, Monitor} = spawn_monitor(fun() -> Main ! {self(), global:set_lock({orders, self()}, [node()], 0)} end),
    Got = receive {Pid, Answer} -> Answer end,
    receive {'DOWN', Monitor, process, Pid, _} -> ok end,
    io:format("  ~s: another process: ~s~n", [When, case Got of true -> "enters"; false -> "refused" end]),
    global:del_lock({orders, Pid}).

nested(Inner) ->
    io:format("orders, and ~p in it~n", [Inner]),
    global:trans({orders, self()}, fun() ->
        other("before the inner one"),
        global:trans({Inner, self()}, fun() -> other("in the inner one") end),
        other("after the inner one")
    end),
    other("after both").

main() ->
    nested(customers),
    nested(orders),
    halt().
END
expect "$BINDIR/erlexec" -noinput -eval '{ok, main} = compile:file(main), main:main().' <<'END'
orders, and customers in it
  before the inner one: another process: refused
  in the inner one: another process: refused
  after the inner one: another process: refused
  after both: another process: enters
orders, and orders in it
  before the inner one: another process: refused
  in the inner one: another process: refused
  after the inner one: another process: enters
  after both: another process: enters
END
