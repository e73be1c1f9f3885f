package memory

import (
	"slices"
	"strconv"
	"strings"
	"time"
)

// expiry has the commands that set or tell when a key expires. In Redis a key exists until the clock is later than that time, in miniredis
// it is gone at that time: exact sets a millisecond more, and tells one less.
//
// Not among them: RESTORE, fields of hashes, and TTLs within a transaction.
var expiry = map[string]bool{
	"EXPIRE": true, "PEXPIRE": true, "EXPIREAT": true, "PEXPIREAT": true, "SET": true, "GETEX": true, "SETEX": true, "PSETEX": true,
	"TTL": true, "PTTL": true, "EXPIRETIME": true, "PEXPIRETIME": true,
}

// exact runs a command as Redis would.
func (s *Server) exact(run func(args []string) (any, error), args []string) (any, error) {
	if s.options.DropEarly || len(args) < 2 {
		return run(args)
	}
	cmd := strings.ToUpper(args[0])
	if !expiry[cmd] {
		return run(args)
	}
	switch cmd {
	case "TTL", "PTTL", "EXPIRETIME", "PEXPIRETIME":
		seconds := cmd[0] != 'P'
		if seconds {
			args = slices.Clone(args)
			args[0] = "P" + cmd
		}
		v, err := run(args)
		if left, ok := v.(int); ok && left > 0 {
			if left--; seconds {
				left = (left + 500) / 1000
			}
			return left, err
		}
		return v, err
	case "EXPIRE", "EXPIREAT", "SETEX":
		return run(later(args, 2, time.Second, cmd == "EXPIREAT", "P"+cmd))
	case "PEXPIRE", "PEXPIREAT", "PSETEX":
		return run(later(args, 2, time.Millisecond, cmd == "PEXPIREAT", cmd))
	}
	for i := 2; i < len(args)-1; i++ { // SET key value …, GETEX key …
		switch option := strings.ToUpper(args[i]); option {
		case "EX", "PX", "EXAT", "PXAT":
			if i == 2 && cmd == "SET" { // that is the value
				continue
			}
			unit := time.Millisecond
			if option[0] == 'E' {
				unit = time.Second
			}
			args = later(args, i+1, unit, len(option) == 4, cmd)
			args[i] = "P" + option[1:]
			return run(args)
		}
	}
	return run(args)
}

// later returns the command cmd with args[i] in milliseconds, and one more. A time that is over stays so.
func later(args []string, i int, unit time.Duration, absolute bool, cmd string) []string {
	args = slices.Clone(args)
	if len(args) <= i {
		return args
	}
	n, err := strconv.ParseInt(args[i], 10, 64)
	if err != nil || n < -1<<43 || n > 1<<43 {
		return args // an error, or never
	}
	n *= int64(unit / time.Millisecond)
	var over int64
	if absolute {
		over = time.Now().UnixMilli()
	}
	if n > over {
		n++
	}
	args[0], args[i] = cmd, strconv.FormatInt(n, 10)
	return args
}
