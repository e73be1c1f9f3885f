package conversations

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"github.com/go-rlock/rlock/lua"
)

// The lock in conversations about read/write locks is "job", too.
const (
	rwChannel = "redisson_rwlock:{job}"
	rwMarks   = "rlock_writers:{job}"
)

func TestReadWriteConversations(t *testing.T) {
	t.Parallel()
	for _, file := range []string{"rw", "rw-redisson", "rw-waiting"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			converse(t, "testdata/"+file, rwChannel, rwDirectives)
		})
	}
}

// Directives for read/write locks. Those for writers add ":write" to the owner:
//
//	read OWNER [lease=30s] [count=1] [within=OWNER] [follows] [forbidden]
//	write OWNER [lease=30s] [count=1] [within=OWNER] [waits] [unseen] [fence]
//	leave OWNER [count=0] [lease=30s]           a reader
//	unlock OWNER [count=0] [lease=30s]          a writer
//	renew-read OWNER … [lease=30s]
//	renew-write OWNER … [lease=30s]
//	force read|write
//	locked                                      on which sides
var rwDirectives = map[string]directive{
	"read": func(c *conversation, d *datadriven.TestData) string {
		a := rwAcquire(d, lua.Reader)
		if a.Within != "" {
			a.Within += ":write"
		} else if !d.HasArg("follows") {
			a.Queue = rwMarks
		}
		r, err := lua.Acquire(c.t.Context(), c.rdb, a)
		if r.Holder != "" {
			require.NotEmpty(c.t, reply(c.must("HGET", plainName, r.Holder)))
			r.Holder = "somebody" // Redis picks one of several at random
		}
		return acquired(r, err)
	},
	"write": func(c *conversation, d *datadriven.TestData) string {
		a := rwAcquire(d, lua.Writer)
		a.Owner += ":write"
		if d.HasArg("waits") {
			a.Queue, a.Listens = rwMarks, !d.HasArg("unseen")
		}
		if d.HasArg("fence") {
			a.Fence = plainFence
		}
		r, err := lua.Acquire(c.t.Context(), c.rdb, a)
		if r.Holder != "" && reply(c.must("HGET", plainName, "mode")) == "write" {
			require.NotEmpty(c.t, reply(c.must("HGET", plainName, r.Holder)))
			r.Holder = "somebody"
		}
		return strings.ReplaceAll(acquired(r, err), "joined", "marked")
	},
	"leave": func(c *conversation, d *datadriven.TestData) string {
		return rwRelease(c, d, lua.Reader, ownerArg(d))
	},
	"unlock": func(c *conversation, d *datadriven.TestData) string {
		return rwRelease(c, d, lua.Writer, ownerArg(d)+":write")
	},
	"renew-read": func(c *conversation, d *datadriven.TestData) string {
		return renewed(lua.RenewReaders(c.t.Context(), c.rdb, durationArg(d, "lease", 30*time.Second), rwHolds(d, "")))
	},
	"renew-write": func(c *conversation, d *datadriven.TestData) string {
		return renewed(lua.Renew(c.t.Context(), c.rdb, durationArg(d, "lease", 30*time.Second), rwHolds(d, ":write")))
	},
	"force": func(c *conversation, d *datadriven.TestData) string {
		side := map[string]lua.Side{"read": lua.Reader, "write": lua.Writer}[d.CmdArgs[0].Key]
		held, err := lua.ForceSide(c.t.Context(), c.rdb, plainName, side, lua.Publish{Name: rwChannel})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("was held: %t", held)
	},
	"locked": func(c *conversation, _ *datadriven.TestData) string {
		read, err1 := lua.IsLocked(c.t.Context(), c.rdb, plainName, lua.Reader)
		write, err2 := lua.IsLocked(c.t.Context(), c.rdb, plainName, lua.Writer)
		if err1 != nil || err2 != nil {
			return fmt.Sprint(err1, err2)
		}
		return fmt.Sprintf("read: %t, write: %t", read, write)
	},
}

func rwAcquire(d *datadriven.TestData, side lua.Side) lua.AcquireArgs {
	return lua.AcquireArgs{
		Name: plainName, Side: side, Owner: ownerArg(d), Lease: durationArg(d, "lease", 30*time.Second),
		Count: numberArg(d, "count", 1), Within: textArg(d, "within", ""),
		GrantLease: 2 * time.Second, Publish: lua.Publish{Name: rwChannel},
	}
}

func rwRelease(c *conversation, d *datadriven.TestData, side lua.Side, owner string) string {
	a := lua.ReleaseArgs{
		Name: plainName, Side: side, Owner: owner, Count: numberArg(d, "count", 0),
		Lease: durationArg(d, "lease", 30*time.Second), Publish: lua.Publish{Name: rwChannel},
	}
	if a.Count == 0 {
		a.Queue = lua.Queue{Key: rwMarks}
	}
	r, err := lua.Release(c.t.Context(), c.rdb, a)
	if err != nil {
		return err.Error()
	}
	return releasedText(r)
}

func rwHolds(d *datadriven.TestData, suffix string) (holds []lua.Hold) {
	for _, arg := range d.CmdArgs {
		if len(arg.Vals) == 0 {
			holds = append(holds, lua.Hold{Name: plainName, Owner: longNames(arg.Key) + suffix})
		}
	}
	return holds
}
