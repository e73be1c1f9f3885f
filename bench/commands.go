package main

import (
	"fmt"
	"strconv"
	"strings"
)

// commands counts calls by command, in lower case.
type commands map[string]int64

// wire are commands never called by scripts, so all of them came over a connection. Redis counts scripts' calls as well, without a
// distinction.
var wire = []string{
	"eval", "evalsha", "eval_ro", "evalsha_ro", "fcall", "fcall_ro",
	"subscribe", "unsubscribe", "psubscribe", "punsubscribe", "ssubscribe", "sunsubscribe",
	"blpop", "brpop", "blmove", "bzpopmin", "wait",
}

// commands reads the counters of all commands since the server's start.
func (s *server) commands() (commands, error) {
	info, err := s.info("commandstats")
	if err != nil {
		return nil, err
	}
	all := make(commands)
	for name, value := range info {
		command, ok := strings.CutPrefix(name, "cmdstat_")
		if !ok {
			continue
		}
		calls, ok := strings.CutPrefix(value, "calls=")
		if !ok {
			return nil, fmt.Errorf("INFO commandstats: %s:%s", name, value)
		}
		calls, _, _ = strings.Cut(calls, ",")
		n, err := strconv.ParseInt(calls, 10, 64)
		if err != nil {
			return nil, fmt.Errorf("INFO commandstats: %s: %w", name, err)
		}
		all[command] = n
	}
	return all, nil
}

// since returns the increase since before.
func (c commands) since(before commands) commands {
	delta := make(commands)
	for name, n := range c {
		if d := n - before[name]; d > 0 && name != "info" { // the harness's own
			delta[name] = d
		}
	}
	return delta
}

// sent returns how many came over a connection. direct are the library's own direct commands, apart from wire.
func (c commands) sent(direct []string) int64 {
	var n int64
	for _, names := range [][]string{wire, direct} {
		for _, name := range names {
			n += c[name]
		}
	}
	return n
}
