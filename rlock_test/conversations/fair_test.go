package conversations

import (
	"fmt"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"

	"github.com/go-rlock/rlock/lua"
)

// The lock in conversations about fair locks.
const (
	fairName    = "job"
	fairChannel = "redisson_lock__channel:{job}"
	fairList    = "redisson_lock_queue:{job}"
	fairTimes   = "redisson_lock_timeout:{job}"
)

func TestFairConversations(t *testing.T) {
	t.Parallel()
	converse(t, "testdata/fair", fairChannel, fairDirectives)
}

// Directives for fair locks. Numbers of this library's owners begin with 0.
//
//	acquire OWNER [lease=30s] [look] [deaf]     joins the queue, except with look
//	release OWNER [no-grants] [deaf]            deaf: ignores the number of receivers
//	refresh OWNER … [deaf]                      places last for 5 s
//	force
//	java-… OWNER                                as Redisson's scripts, see java_test.go
var fairDirectives = map[string]directive{
	"acquire": func(c *conversation, d *datadriven.TestData) string {
		r, err := lua.Acquire(c.t.Context(), c.rdb, lua.AcquireArgs{
			Name: fairName, Owner: ownerArg(d), Lease: durationArg(d, "lease", 30*time.Second), Count: 1,
			Fair: fairArg(d), Join: !d.HasArg("look"), Publish: lua.Publish{Name: fairChannel},
		})
		text := acquired(r, err)
		if r.Behind {
			text += " behind Redisson's"
		}
		return text
	},
	"release": func(c *conversation, d *datadriven.TestData) string {
		r, err := lua.Release(c.t.Context(), c.rdb, lua.ReleaseArgs{
			Name: fairName, Owner: ownerArg(d), Fair: fairArg(d), Publish: lua.Publish{Name: fairChannel},
		})
		if err != nil {
			return err.Error()
		}
		return releasedText(r)
	},
	"refresh": func(c *conversation, d *datadriven.TestData) string {
		var places []lua.Place
		for _, arg := range d.CmdArgs {
			if arg.Key != "deaf" {
				places = append(places, lua.Place{
					Name: fairName, Owner: longNames(arg.Key), List: fairList, Times: fairTimes, Channel: fairChannel,
				})
			}
		}
		verdicts, err := lua.Refresh(c.t.Context(), c.rdb, fairArg(d), lua.Publish{}, places)
		return renewed(verdicts, err)
	},
	"force": func(c *conversation, d *datadriven.TestData) string {
		held, err := lua.ForceFair(c.t.Context(), c.rdb, fairName, fairArg(d), lua.Publish{Name: fairChannel})
		if err != nil {
			return err.Error()
		}
		return fmt.Sprintf("was held: %t", held)
	},
	"java-lock":    javaStep(javaLock),
	"java-unlock":  javaStep(javaUnlock),
	"java-give-up": javaStep(javaGiveUp),
}

func fairArg(d *datadriven.TestData) lua.Fair {
	f := lua.Fair{List: fairList, Times: fairTimes, Place: 5 * time.Second, GrantLease: 2 * time.Second, Counts: !d.HasArg("deaf")}
	if d.HasArg("no-grants") {
		f.GrantLease = 0
	}
	return f
}
