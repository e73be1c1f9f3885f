package main

import "fmt"

const usage = `rlock is a re-entrant lock in Redis, the same one as Redisson's RLock.

  rlock demo                           see it work, in about ten seconds
  rlock run [flags] NAME -- command…   run a command while holding the lock NAME
  rlock version                        print the version
  rlock help [command]                 print this, or more about a command
`

const usageDemo = `usage: rlock demo [-cheats N]

Several processes share a stock counter through one lock; one of them is killed
while it holds the lock. Shows who held it when, and checks that no two were
inside at once and that no update was lost. Takes about ten seconds.

It uses the Redis at REDIS_ADDR if that is set (under keys of its own, which it
removes), else a redis-server from PATH that it starts, else an embedded one.

  -cheats N   that many processes leave out the lock: see the checks fail

exit code  0 all is well   1 a check failed   2 usage   128+n ended by signal n
`

const usageRun = `usage: rlock run [flags] NAME -- command [argument…]

Takes the lock NAME, runs the command, releases the lock, and exits with the
command's exit code. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to it.

  -wait D      wait at most D for the lock, 0: try once (default: wait for ever)
  -lease D     hold the lock for D at most: it is not renewed, and when it ends
               the command is stopped (default: renewed while the command runs)
  -watchdog D  how long the lock outlives a crash of this machine; renewed every
               third of it (default 30s)
  -grace D     time between SIGTERM and SIGKILL for a command that has to be
               stopped because the lock was lost (default 10s)
  -E N         exit code if the lock was not acquired (default 1)
  -addr A      host:port, host:port,host:port of a cluster, or a URL (redis://
               user:password@host/db, rediss://, unix://)
               (default REDIS_ADDR, or 127.0.0.1:6379)

A command whose stdin is no terminal gets a process group of its own, and
signals go to all of it.

exit code  of the command, or
  1      not acquired in time (see -E)    125  rlock failed, say Redis is down
  2      usage                            126  the command can't be executed
  124    the lock was lost; the command   127  the command was not found
         was stopped                      128+n  it was ended by signal n
`

// help prints what is known about the command in args.
func (p *program) help(args []string) int {
	text := usage
	if len(args) > 0 {
		switch args[0] {
		case "demo":
			text = usageDemo
		case "run":
			text = usageRun
		case "version", "help":
		default:
			return p.misuse(fmt.Errorf("unknown command %q", args[0]), usage)
		}
	}
	fmt.Fprint(p.out, text)
	return 0
}
