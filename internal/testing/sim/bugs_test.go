package sim

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// Worlds of TestBugsAreFound.

// calm is a world with no faults.
func calm(*Plan) {}

// lossy is a world with lost answers, where a process sometimes cannot reach the server and semaphores are tampered with.
func lossy(p *Plan) {
	p.Lossy, p.Meddle = 0.03, 0.2
	for at := 3 * time.Second; at < p.Time; at += 10 * time.Second {
		p.Faults = append(p.Faults, Fault{At: at, For: 5 * time.Second, What: Silent})
	}
}

// slowOnce is a world where the server stalls for longer than calls retry, and leases are long.
func slowOnce(p *Plan) {
	p.Watchdog = 30 * time.Second
	p.Faults = []Fault{{At: 10 * time.Second, For: 12 * time.Second, What: ServerSlow, Process: -1}}
}

// killed is a world where two processes die, probably holding permits.
func killed(p *Plan) {
	p.Watchdog, p.Hold, p.Think = 3*time.Second, 2*time.Second, 20*time.Millisecond
	p.Faults = []Fault{{At: 3 * time.Second, What: Killed, Process: 0}, {At: 13 * time.Second, What: Killed, Process: 1}}
}

// gone is a world where half of the processes stop at once for half a minute, probably in line.
func gone(p *Plan) {
	p.Watchdog, p.Hold, p.Think, p.Leave = 3*time.Second, time.Second, 20*time.Millisecond, 0
	for n := range len(p.Processes) / 2 {
		p.Faults = append(p.Faults, Fault{At: 5 * time.Second, For: 30 * time.Second, What: HeldBack, Process: n})
	}
}

// heldLong is a world where sections outlast a lease, and other processes end permits by their ids.
func heldLong(p *Plan) {
	p.Watchdog, p.Hold, p.Think, p.Meddle = 3*time.Second, 5*time.Second, 20*time.Millisecond, 0.5
}

// uncounted is a world where the server counts none of the waiting processes.
func uncounted(p *Plan) { p.Uncounted, p.Hold, p.Think = everybody, 100*time.Millisecond, 0 }

// takenAlong is a world of short sections, half of them exported.
func takenAlong(p *Plan) {
	p.Along, p.Hold, p.Think, p.Watchdog = 0.5, time.Millisecond, 20*time.Millisecond, 3*time.Second
}

// TestBugsAreFound puts one bug at a time into the scripts: one of a few worlds must fail, with the right message.
func TestBugsAreFound(t *testing.T) {
	for _, bug := range []struct {
		name     string
		kind     Kind
		old, new string // in the text of the scripts; each may be several, between blank lines
		says     string
		in       func(*Plan)
	}{
		{"a grant is taken back because nobody was counted", Plain, "heard == 0\n\nif tell(entry, grant_message(field, lease, token)) then",
			"heard == -1\n\nif tell(entry, grant_message(field, lease, token)) ~= 0 then", "(G1)", uncounted},
		{"a fair grant is taken back because nobody was counted", Fair, "unseen(q.command, q.channel, entry) > 0 then\n\ntell(q, entry, grant_message(entry, lease, '-'))",
			"false then\n\nrefused = tell(q, entry, grant_message(entry, lease, '-')) and 'gone' or nil", "(G1)", uncounted},
		{"a ticket works twice", Plain, "redis.call('hdel', lock, ticket)\nif ttl", "if ttl", "the second one that has adopted", takenAlong},
		{"an Export frees the lock", Fenced, "redis.call('hdel', lock, owner)\nlocal heard = redis.pcall(ARGV[4], ARGV[5], '01')",
			"redis.call('hdel', lock, owner, ticket)\nlocal heard = redis.pcall(ARGV[4], ARGV[5], '01')", "a ticket that nobody has used has no lock", takenAlong},
		{"an Adopt raises no token", Fenced, "local token = 0\nif fence then\ntoken = raise(fence)",
			"local token = 0\nif fence then\ntoken = tonumber(redis.call('get', fence))", "after token", takenAlong},
		{"a writer's ticket works twice", ReadWrite, "redis.call('hdel', lock, ticket)\nif ttl", "if ttl", "the second one that has adopted", takenAlong},
		{"a writer raises no token", ReadWrite, "token = raise(fence)\nelse", "token = tonumber(redis.call('get', fence) or 7)\nelse", "after token", calm},
		{"a repeat of a lost call takes and gives once more", Semaphore, "local done, sum, granted = recalled(line)", "local done, sum, granted", "permits", lossy},
		{"a repeat of a lost call that was all done gives once more", Semaphore, "if last >= now then", "if false then", "permits", lossy},
		{"one permit too many is taken", Semaphore, "if not stops and want <= free - sum then", "if not stops and want <= free - sum + 1 then", "permits are free", lossy},
		{"a release wakes nobody", Semaphore, "local heard = redis.pcall(line.how, ear_of(line, client), look_message(ms))", "local heard = 1", "(G4)", calm},
		// As before places in line were timed: one process is asked to look after a gone one, a place has no end, and whoever wants many is
		// not asked to show that it lives.
		{"a single process looks after another, which may be gone as well", Semaphore, "at, need = line.soon + need * line.keep, 2 * need", "return", "(G4)", gone},
		{"the place of a process that is gone does not end", Semaphore, "'-inf', string.format('%d', line.now), 'byscore'",
			"'-inf', string.format('%d', line.now - 60000), 'byscore'", "(G4)", gone},
		{"whoever wants many need not live", Semaphore, "elseif turn or blocks and (at < line.length or #line.wants > 0) then",
			"elseif not turn then\nstops = blocks\nelse", "(G4)", gone},
		{"the queue does not expire", Semaphore, "local was = redis.call('pexpire', key, ms)", "local was = 1", "after the end (G5)", killed},
		{"a latch opens one too early", Latch, "if left > 0 then", "if left > 1 then", "the latch is open", lossy},
		{"a repeat counts down once more", Latch, "if answer == '1' then\nreturn 1\nend\nif answer then\nreturn 0\nend\nif not before then",
			"if not before then", "CountDowns", lossy},
		{"a latch at 0 wakes nobody", Latch, "if tonumber(before) > 0 then", "if false then", "(G4)", calm},
		{"a latch that is deleted wakes nobody", Latch, "return failed\nend\nlocal heard = redis.pcall(ARGV[4], ARGV[5], '0')",
			"return failed\nend\nlocal heard = 1", "(G4)", calm},
		{"a drain leaves one of those that it reports", Semaphore, "add(line, -n)\nreturn n", "add(line, math.min(1 - n, 0))\nreturn n", "permits are free", lossy},
		{"a release to a semaphore that exists does nothing", Semaphore,
			"elseif what == 'set' or what == 'exists' and not line.exists then\nreturn 0",
			"elseif what == 'set' then\nreturn 0\nelseif what == 'exists' then\nreturn 1", "permits are free", lossy},
		{"one permit too many is taken, which expires", Permits,
			"if not stops and want <= free - sum then", "if not stops and want <= free - sum + 1 then", "permits are free", lossy},
		{"a permit given by a message is not counted", Permits, "add(line, -added)", "add(line, -line.sum)", "held, of", lossy},
		{"two permits have one slot", Permits, "local slot = slot_from(low)", "local slot = 0", "slot 0", lossy},
		{"a permit that is given back keeps its slot", Permits, "numbered = numbered - redis.call('zrem', numbers, unpack(ids))", "", "and is gone", lossy},
		{"a permit ends a second early", Permits, "'-inf', line.now, 'limit'", "'-inf', line.now + 1000, 'limit'", "(G2)", lossy},
		{"a renewal finds each permit", Permits, "local verdict = 0", "local verdict = 1", "not notified of its loss", heldLong},
		{"a repeat adds permits once more", Permits, "local done, sum, which, slots, given = recalled(line)", "local done, sum, which, slots, given",
			"may have been added", lossy},
		{"a call that is cancelled keeps its permits", Permits, "if line.cancelled then\nfor", "if false then\nfor", "(G5)", slowOnce},
		{"what a dead process had does not come back", Permits, "local expired = redis.call(", "local expired = {} or redis.call(", "(G4)", killed},
		{"nobody looks when a permit expires", Permits, "line.soon = math.min(line.soon, tonumber(next or math.huge))", "", "(G4)", killed},
	} {
		t.Run(bug.name, func(t *testing.T) {
			t.Parallel()
			changed := false
			for seed := range uint64(200) { // mostly one of the first 20 shows it; how often depends on the scheduling of goroutines
				var r *Result
				synctest.Test(t, func(*testing.T) {
					p := NewPlan(seed, Limits{Processes: 4, Time: 40 * time.Second, Kinds: []Kind{bug.kind}, Calm: true})
					p.Most, p.Leave = 1000, 0.3
					bug.in(p)
					w := newWorld(p)
					w.change = func(text string) string {
						olds, news := strings.Split(bug.old, "\n\n"), strings.Split(bug.new, "\n\n")
						for i, old := range olds {
							changed = changed || strings.Contains(text, old)
							text = strings.ReplaceAll(text, old, news[i])
						}
						return text
					}
					r = w.play()
				})
				for _, v := range r.Violations {
					if strings.Contains(v.Text, bug.says) {
						t.Logf("world %d: %v", seed+1, v)
						return
					}
				}
				if len(r.Violations) > 0 {
					t.Log(fmt.Sprint("another one: ", r.Violations[0]))
				}
			}
			t.Errorf("not found; a script was changed: %v", changed)
		})
	}
}

// Contexts whose methods block keep no renewer from renewing other holds, and from noticing their loss (G1, G2).
func TestForeignContexts(t *testing.T) {
	for seed := range uint64(20) {
		var r *Result
		synctest.Test(t, func(*testing.T) {
			p := hot(Plain, 3, 40*time.Second)
			p.Seed, p.Watchdog, p.Think, p.Long, p.Foreign = seed, 3*time.Second, time.Second, 0.5, 0.5
			p.Names = nil
			for i := range 6 { // so a process mostly has several
				p.Names = append(p.Names, Name{Kind: Plain, Text: fmt.Sprint("plain", i)})
			}
			for i := range p.Processes {
				p.Processes[i].Workers = nil
				for j := range p.Names {
					p.Processes[i].Workers = append(p.Processes[i].Workers, Worker{Seed: seed + uint64(10*i+j), Names: []int{j}})
				}
			}
			for at := 3 * time.Second; at < p.Time; at += 3 * time.Second {
				p.Faults = append(p.Faults, Fault{At: at, What: Deleted, Name: int(at/(3*time.Second)) % len(p.Names)})
			}
			r = newWorld(p).play()
		})
		for _, v := range r.Violations {
			t.Fatalf("world %d: %v", seed+1, v)
		}
	}
}

// TestWaitsForForeignContextsAreFound builds TestForeignContexts with a bug in the library: losses wait for the parents of their contexts.
func TestWaitsForForeignContextsAreFound(t *testing.T) {
	t.Parallel()
	overlay := withBug(t, "../../tenure/loss.go", "foreign.Go(func() { cancel(why) })", "cancel(why)")
	out, err := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-vet=off", "-overlay", overlay, "-run", "^TestForeignContexts$").CombinedOutput()
	if err == nil || !bytes.Contains(out, []byte("two owners (G1)")) && !bytes.Contains(out, []byte("(G2)")) {
		t.Errorf("not found: %v: %s", err, out)
	}
}

// withBug returns a file for -overlay that replaces one text in a source file by another.
func withBug(t *testing.T, path, right, wrong string) string {
	t.Helper()
	dir := t.TempDir()
	bug, overlay := filepath.Join(dir, "bug.go"), filepath.Join(dir, "overlay.json")
	source, err1 := filepath.Abs(path)
	text, err2 := os.ReadFile(source)
	if !bytes.Contains(text, []byte(right)) {
		t.Fatalf("no %q in %s: %v", right, path, err2)
	}
	err3 := os.WriteFile(bug, bytes.Replace(text, []byte(right), []byte(wrong), 1), 0o600)
	replace, err4 := json.Marshal(map[string]any{"Replace": map[string]string{source: bug}})
	err5 := os.WriteFile(overlay, replace, 0o600)
	if err := errors.Join(err1, err3, err4, err5); err != nil {
		t.Fatal(err)
	}
	return overlay
}

// A process that does not learn of a waiter keeps it waiting (G4): without its ear, WithLinger would be useless.
func TestUnheardQuestionsAreFound(t *testing.T) {
	for seed := range uint64(20) {
		var r *Result
		synctest.Test(t, func(*testing.T) {
			w := newWorld(NewPlan(seed, Limits{Processes: 3, Time: 40 * time.Second, Linger: true, Calm: true}))
			w.wrong = func(cmd string, args []string) bool { return cmd == "PUBLISH" && isEar(args[0]) }
			r = w.play()
		})
		for _, v := range r.Violations {
			if strings.Contains(v.Text, "nobody is inside") {
				t.Logf("world %d: %v", seed+1, v)
				return
			}
		}
	}
	t.Error("not found")
}
