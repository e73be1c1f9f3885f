package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

const usageLs = `usage: rlock ls [flags] [PATTERN]

Lists held locks of all kinds, including Redisson's, semaphores whose expiring
permits are held, and latches and other semaphores with waiters. PATTERN is a
Redis pattern: *, ? and [abc]; \ escapes them.

It uses SCAN in steps of 500 keys, so it does not block other clients, but takes
time on a server with millions of keys. On a cluster it scans all masters.

  -json        print one line of JSON per lock
  -limit N     stop after N locks (default 1000)
` + usageTarget + `
Piped, the columns are name, kind, holder, depth and time left, separated by
tabs. A lock with a token counter is shown as fenced. A fair lock held by
Redisson looks like a mutex, and so does rlock_upgrade:{NAME}, held by the
reader of NAME that may upgrade.

exit code  0   2 usage   125 Redis, or a part of the cluster, failed
`

// scanStep bounds the keys per SCAN.
const scanStep = 500

func (p *program) ls(args []string) int {
	var t target
	flags := p.flags("ls", &t)
	asJSON := flags.Bool("json", false, "")
	limit := flags.Int("limit", 1000, "")
	pattern, given, code, ok := p.parseOne(flags, args)
	switch {
	case !ok:
		return code
	case *limit < 1:
		return p.misuse(errors.New("-limit must be at least 1"), "ls")
	case !given:
		pattern = "*"
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		d, err := deployed(ctx, v.rdb)
		if err != nil {
			return p.failed(ctx, v.at(err))
		}
		pattern = escapeGlob(v.prefix) + pattern
		locks, more, err := v.scan(ctx, d.masters, pattern, *limit)
		if err == nil && !more {
			var latches []state
			latches, err = v.waitedFor(ctx, d.masters, pattern)
			for _, s := range latches {
				if !slices.ContainsFunc(locks, func(known state) bool { return known.key == s.key }) {
					locks = append(locks, s)
				}
			}
			more = len(locks) > *limit
			locks = locks[:min(len(locks), *limit)]
		}
		at := make([]*state, len(locks))
		for i := range locks {
			at[i] = &locks[i]
		}
		v.addLabels(ctx, at...)
		noteUnlabelledBeside(at)
		p.list(locks, *asJSON)
		if !*asJSON {
			p.remarkExpiry(locks)
		}
		code = p.tellMissing(d.missing())
		switch {
		case ctx.Err() != nil:
			return endCode(ctx)
		case err != nil:
			return p.failed(ctx, v.at(err))
		case more:
			fmt.Fprintf(p.err, "rlock: stopped at -limit %d; there may be more\n", *limit)
		}
		return code
	})
}

// remarkExpiry names the first locks that are likely to stay when their holders are gone.
func (p *program) remarkExpiry(locks []state) {
	const most = 3
	var names []string
	many := 0
	for i := range locks {
		if s := &locks[i]; s.outlives() {
			if many++; many <= most {
				names = append(names, strconv.Quote(s.Name))
			}
		}
	}
	if many > most {
		names = append(names, fmt.Sprintf("and %d more", many-most))
	}
	if many > 0 {
		fmt.Fprintf(p.err, "rlock: no expiry within a day: %s; if a holder is gone, free its lock by rlock unlock -force NAME\n", strings.Join(names, ", "))
	}
}

// tellMissing says what a list leaves out, and returns its exit code.
func (p *program) tellMissing(missing []error) (code int) {
	for _, err := range missing {
		code = p.fail(exitInternal, err)
	}
	return code
}

// search is how SCAN finds locks: a pattern and a type of keys, and the lock's key for each, if any.
type search struct {
	pattern, keyType string
	lock             func(key string) (string, bool)
}

// scan finds at most limit matching locks on the servers; more reports that it stopped there.
func (v *viewer) scan(ctx context.Context, servers []node, pattern string, limit int) (locks []state, more bool, err error) {
	seen := make(map[string]bool) // SCAN may return a key twice; only locks, whose number is bounded
	searches := append([]search{{pattern, "hash", func(key string) (string, bool) { return key, true }}}, permitKeys(pattern)...)
	for _, n := range servers {
		for _, how := range searches {
			for cursor := uint64(0); ; {
				page, err := v.page(ctx, n, cursor, how)
				if err != nil {
					return locks, false, err
				}
				var keys []string
				for _, found := range page.Elements {
					if key, ok := how.lock(found); ok && !seen[key] {
						keys = append(keys, key)
					}
				}
				found, err := v.readPage(ctx, slices.Compact(slices.Sorted(slices.Values(keys))))
				if err != nil {
					return locks, false, err
				}
				if how.keyType == "zset" { // the name may belong to a number, or a hash
					found = slices.DeleteFunc(found, func(s state) bool { return s.Kind != permitKind })
				}
				for i := range found {
					seen[found[i].key] = true
				}
				locks = append(locks, found...)
				switch {
				case len(locks) > limit:
					return locks[:limit], true, nil
				case page.Cursor == cursor && cursor != 0:
					return locks, false, nodeError{n.addr, errors.New("SCAN does not advance: it answers with the cursor that it was given (connect to the server itself)")}
				}
				if cursor = page.Cursor; cursor == 0 {
					break
				}
			}
		}
	}
	return locks, false, nil
}

func (v *viewer) page(ctx context.Context, n node, cursor uint64, how search) (rueidis.ScanEntry, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	page, err := n.Do(ctx, n.B().Scan().Cursor(cursor).Match(how.pattern).Count(scanStep).Type(how.keyType).Build()).AsScanEntry()
	if err != nil {
		return page, nodeError{n.addr, fmt.Errorf("SCAN: %w", err)}
	}
	return page, nil
}

// readPage is read for keys that may hold anything, or be forbidden.
func (v *viewer) readPage(ctx context.Context, keys []string) ([]state, error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	locks, failed := v.read(ctx, keys)
	for key, err := range failed {
		if !errors.Is(err, errNoLock) && !isForbidden(err) {
			return nil, fmt.Errorf("%q: %w", key, err)
		}
	}
	return locks, nil
}

// list prints locks in the order of their names.
func (p *program) list(locks []state, asJSON bool) {
	slices.SortFunc(locks, func(a, b state) int { return strings.Compare(a.Name, b.Name) })
	var rows [][]string
	for i := range locks {
		s := &locks[i]
		if asJSON {
			p.json(s)
			continue
		}
		rows = append(rows, []string{printable(s.Name), s.Kind, s.holders(), strconv.Itoa(s.depth()), s.ttl()})
	}
	if !asJSON {
		table(p.out, []string{"NAME", "KIND", "HOLDER", "DEPTH", "TTL"}, rows, isTerminal(p.out))
	}
}

// holders returns the first holders, and the number of others.
func (s *state) holders() string {
	if s.isCounter() {
		return s.left()
	}
	text := s.Holders[0].text()
	if more := len(s.Holders) - 1; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// escapeGlob returns a pattern that matches only text.
func escapeGlob(text string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`).Replace(text)
}
