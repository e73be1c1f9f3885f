package conversations

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/lua"
)

// The semaphore in the conversations is "job", too.
const (
	semaphoreChannel  = "redisson_sc:{job}"
	semaphoreRequests = "rlock_sem_requests:{job}"
	semaphoreQueue    = "rlock_sem_queue:{job}"
	permitTimeouts    = "{job}:timeout"
	permitSlots       = "rlock_sem_slots:{job}"
)

func TestSemaphoreConversations(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"semaphore", "semaphore-waiting"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			converse(t, "testdata/"+file, "", semaphoreDirectives)
		})
	}
}

func TestPermitConversations(t *testing.T) {
	t.Parallel()
	converse(t, "testdata/permits", "", permitDirectives)
}

// Directives for semaphores. A1 is request 1 of client A. Its numbers are the permits its waiters want, in order:
//
//	set A1 5                     if it does not exist
//	release A1 2 [exists]        gives back 2 permits; a negative number takes some away
//	drain A1
//	try A1 N …
//	wait A1 [N …] [gives=N]      queues; without numbers it leaves the queue
//	cancel A1 [N …] [gives=N]
//
// Each can have no-queue.
var semaphoreDirectives = map[string]directive{
	"set": semaphoreStep(func(a *lua.SemaphoreArgs, n []int64) { a.Change, a.N = lua.TrySet, n[0] }),
	"release": semaphoreStep(func(a *lua.SemaphoreArgs, n []int64) {
		a.N = n[0]
	}),
	"drain":  semaphoreStep(func(a *lua.SemaphoreArgs, _ []int64) { a.Change = lua.Drain }),
	"try":    semaphoreStep(func(a *lua.SemaphoreArgs, n []int64) { a.Wants = n }),
	"wait":   semaphoreStep(func(a *lua.SemaphoreArgs, n []int64) { a.Wants, a.Waits = n, true }),
	"cancel": semaphoreStep(func(a *lua.SemaphoreArgs, n []int64) { a.Wants, a.Cancel = n, true }),
}

// semaphoreRequest has the fields that all these requests share.
func semaphoreRequest(d *datadriven.TestData) lua.SemaphoreArgs {
	name, number, _ := strings.Cut(ownerArg(d), ":")
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil {
		panic(err)
	}
	a := lua.SemaphoreArgs{
		Semaphore: lua.Semaphore{
			Name: plainName, Requests: semaphoreRequests, Queue: semaphoreQueue, Publish: lua.Publish{Name: semaphoreChannel}, Client: name,
			Keep: 2 * time.Second,
		},
		Request: n,
		N:       int64(numberArg(d, "gives", 0)),
	}
	if d.HasArg("no-queue") {
		a.Queue = ""
	}
	if d.HasArg("exists") {
		a.Change = lua.AddIfExists
	}
	return a
}

func semaphoreStep(with func(a *lua.SemaphoreArgs, n []int64)) directive {
	return func(c *conversation, d *datadriven.TestData) string {
		a := semaphoreRequest(d)
		var numbers []int64
		for _, arg := range d.CmdArgs[1:] {
			if n, err := strconv.ParseInt(arg.Key, 10, 64); err == nil {
				numbers = append(numbers, n)
			}
		}
		with(&a, numbers)
		c.passShortly()
		r, err := lua.UseSemaphore(c.t.Context(), c.rdb, a)
		if err != nil {
			return err.Error()
		}
		return semaphoreText(a, r)
	}
}

// passShortly lets 20 ms pass, and makes them the longest step: no two places end at once, and they end in the order of these steps.
func (c *conversation) passShortly() {
	c.quick = 20
	c.pass(c.quick, 0)
}

// semaphoreText formats a reply: the granted requests, counted from 1.
func semaphoreText(a lua.SemaphoreArgs, r lua.SemaphoreReply) string {
	var said []string
	switch {
	case a.Change == lua.Drain:
		said = append(said, fmt.Sprintf("drained %d", r.Done))
	case a.Change != lua.Add:
		said = append(said, map[int64]string{1: "done", 0: "not done"}[r.Done])
	}
	if len(a.Wants) > 0 && !a.Cancel {
		var which []string
		for _, i := range r.Granted {
			which = append(which, strconv.Itoa(i+1))
		}
		switch {
		case len(r.Granted) == 0:
			said = append(said, "refused")
		case len(r.Granted) < len(a.Wants):
			said = append(said, "granted "+strings.Join(which, " and "))
		default:
			said = append(said, "granted")
		}
		if len(r.Granted) < len(a.Wants) {
			said = append(said, "asks again in "+seconds(r.Again.Milliseconds()))
		}
	}
	return strings.Join(append(said, fmt.Sprintf("%d free", r.Free)), ", ")
}

// Directives for expiring permits. p1 is a permit, p2+p3 are two permits requested together:
//
//	set A1 5, total A1 5
//	release A1 p1 …
//	try A1 p1 p2+p3 … [lease=30s]
//	wait A1 [p1 …] [lease=30s] [gives=p4+p5]
//	cancel A1 [p1 …]
//	renew p1 … [lease=30s]
//	lease p1 10s|forever
//	look [p1]
var permitDirectives = map[string]directive{
	"set":     permitsStep(func(a *lua.PermitsArgs, words []string) { a.Change, a.N = lua.TrySet, numberOf(words[0]) }),
	"total":   permitsStep(func(a *lua.PermitsArgs, words []string) { a.Change, a.N = lua.SetTotal, numberOf(words[0]) }),
	"add":     permitsStep(func(a *lua.PermitsArgs, words []string) { a.N = numberOf(words[0]) }),
	"release": permitsStep(func(a *lua.PermitsArgs, words []string) { a.Release = permitIDs(words...) }),
	"try":     permitsStep(func(a *lua.PermitsArgs, words []string) { wanting(a, words) }),
	"wait":    permitsStep(func(a *lua.PermitsArgs, words []string) { wanting(a, words); a.Waits = true }),
	"cancel":  permitsStep(func(a *lua.PermitsArgs, words []string) { wanting(a, words); a.Cancel = true }),
	"renew": func(c *conversation, d *datadriven.TestData) string {
		all := []lua.PermitsToRenew{{Timeouts: permitTimeouts, IDs: permitIDs(plainWords(d.CmdArgs)...)}}
		return renewed(lua.RenewPermits(c.t.Context(), c.rdb, durationArg(d, "lease", 30*time.Second), all))
	},
	"lease": func(c *conversation, d *datadriven.TestData) string {
		words := plainWords(d.CmdArgs)
		held, err := lua.SetPermitLease(c.t.Context(), c.rdb, permitSemaphore(), permitIDs(words[0])[0], leaseOf(words[1]))
		if err != nil {
			return err.Error()
		}
		return map[bool]string{true: "set", false: "not held"}[held]
	},
	"look": func(c *conversation, d *datadriven.TestData) string {
		var of *lua.PermitID
		if len(d.CmdArgs) > 0 {
			of = &permitIDs(d.CmdArgs[0].Key)[0]
		}
		info, err := lua.LookPermits(c.t.Context(), c.rdb, permitSemaphore(), of)
		if err != nil {
			return err.Error()
		}
		text := fmt.Sprintf("%d free, %d held", info.Free, info.Held)
		switch {
		case info.Found && info.Left < 0:
			text += ", " + d.CmdArgs[0].Key + " does not expire"
		case info.Found:
			text += ", " + d.CmdArgs[0].Key + " for " + seconds(info.Left.Milliseconds())
		case of != nil:
			text += ", " + d.CmdArgs[0].Key + " is not held"
		}
		return text
	},
}

func permitSemaphore() lua.PermitSemaphore {
	return lua.PermitSemaphore{
		Semaphore: lua.Semaphore{Name: plainName, Requests: semaphoreRequests, Queue: semaphoreQueue, Publish: lua.Publish{Name: semaphoreChannel}},
		Timeouts:  permitTimeouts, Slots: permitSlots,
	}
}

func numberOf(word string) int64 {
	n, err := strconv.ParseInt(word, 10, 64)
	if err != nil {
		panic(err)
	}
	return n
}

func leaseOf(word string) time.Duration {
	if word == "forever" {
		return lua.Forever
	}
	lease, err := time.ParseDuration(word)
	if err != nil {
		panic(err)
	}
	return lease
}

// plainWords are the arguments without a value.
func plainWords(args []datadriven.CmdArg) (words []string) {
	for _, arg := range args {
		if len(arg.Vals) == 0 {
			words = append(words, arg.Key)
		}
	}
	return words
}

// An id is 16 bytes: its name, and dots.
func permitIDs(words ...string) (ids []lua.PermitID) {
	for name := range strings.SplitSeq(strings.Join(words, "+"), "+") {
		if name != "" {
			ids = append(ids, lua.PermitID([]byte(name+strings.Repeat(".", 16-len(name)))))
		}
	}
	return ids
}

func permitName(member string) string {
	if len(member) == len(lua.PermitID{}) {
		return strings.TrimRight(member, ".")
	}
	return member
}

func wanting(a *lua.PermitsArgs, words []string) {
	for _, word := range words {
		ids := permitIDs(word)
		a.Wants = append(a.Wants, int64(len(ids)))
		a.IDs = append(a.IDs, ids...)
	}
}

func permitsStep(with func(a *lua.PermitsArgs, words []string)) directive {
	return func(c *conversation, d *datadriven.TestData) string {
		gives := textArg(d, "gives", "")
		d.CmdArgs = slices.DeleteFunc(slices.Clone(d.CmdArgs), func(arg datadriven.CmdArg) bool { return arg.Key == "gives" })
		a := lua.PermitsArgs{SemaphoreArgs: semaphoreRequest(d), Timeouts: permitTimeouts, Slots: permitSlots, Release: permitIDs(gives)}
		a.Lease = leaseOf(textArg(d, "lease", "30s"))
		with(&a, plainWords(d.CmdArgs[1:]))
		c.passShortly()
		r, err := lua.UsePermits(c.t.Context(), c.rdb, a)
		if err != nil {
			return err.Error()
		}
		text := semaphoreText(a.SemaphoreArgs, r.SemaphoreReply)
		if len(a.IDs) == 1 && len(r.Granted) == 1 { // then the reply does not say it
			text = strings.TrimSuffix(text, ", 0 free")
		}
		if len(r.Slots) > 0 {
			text += fmt.Sprintf(", slots %v", r.Slots)
		}
		for i, given := range r.Released {
			name := permitName(string(a.Release[i][:]))
			text += ", " + name + map[lua.Given]string{
				lua.PermitUnknown: " is not held", lua.PermitReleased: " released", lua.PermitExpired: " had expired",
			}[given]
		}
		require.False(c.t, r.More)
		return text
	}
}
