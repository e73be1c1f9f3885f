package main

// bug is a change of one place in the engine, or what observes it, that breaks a promise.
type bug struct {
	name     string
	file     string // in internal
	old, new string // old stands there once
}

var bugs = []bug{
	{
		"a lease counts from the answer (G2)", "tenure/hold.go",
		"leases, began, until := m.Client.Leases, a.Sent, a.Until(m)",
		"leases, began, until := m.Client.Leases, a.Sent, a.Until(m).Add(time.Since(a.Sent))",
	},
	{
		"a hold begins although its lease is over (G1)", "tenure/hold.go",
		"} else if until := a.Until(m); !time.Now().Before(until) {", "} else if until := a.Until(m); until.Equal(time.Unix(1, 0)) {",
	},
	{
		"an unlock is not told that its key is gone (G2)", "engine/release.go",
		"u.Held, u.Err = reply.Status != lua.NotHeld || u.Late && u.args.Ticket == \"\", err", "u.Held, u.Err = true, err",
	},
	{
		"a loss does not cancel the sections (G2)", "tenure/loss.go",
		"h.cancel(loss, &ended)\n\t\tfor l", "for l",
	},
	{
		"Close does not cancel the sections (G9)", "tenure/tenure.go",
		"h.cancel(why, &ended)", "_, _ = why, h",
	},
	{
		"a lock is renewed during its release (G7)", "engine/release.go",
		"t.Lock.Client.Leases.Releasing(&t.Lease)", "_ = t",
	},
	{
		"a tenure stays in memory after its unlock", "engine/release.go",
		"c.Leases.Stop(&t.Lease)\n\tif r.Err", "if r.Err",
	},
	{
		"a lock that comes after its caller has left stays (G5)", "engine/outcome.go",
		"if a.Status == lua.Acquired {\n\t\tl.giveBack()", "if false {\n\t\tl.giveBack()",
	},
	{
		"what is left of a failed call is not swept (G5)", "engine/outcome.go",
		"l.Lock.Client.Sweep(rest...)", "_ = l",
	},
	{
		"a failed unlock is not swept (G5)", "engine/release.go",
		"rest = t.Orphan()\n\tswitch {", "switch {",
	},
	{
		"a writer that leaves wakes no readers (G4)", "engine/outcome.go",
		"if m := l.Lock; l.queued && m.Kind.Side == lua.Writer && !l.Refusal().Joined {", "if m := l.Lock; false {",
	},
	{
		"a key that was deleted wakes nobody (G4)", "tenure/loss.go",
		"c.Hub.WakeSoon(t.Lock.Waiters())", "_ = c.Hub",
	},
	{
		"a run of hand-overs never ends", "engine/handoff.go",
		"!l.Tenure.IsClean() || t.Run.Over(o, now)", "!l.Tenure.IsClean()",
	},
	{
		"a lease that is nearly over is passed on (G2)", "engine/handoff.go",
		"if left < t.FirstLease/3 || !h.Unlink() {", "if !h.Unlink() {",
	},
	{
		"a lost tenure is passed on (G1)", "tenure/hold.go",
		"if busy || t.loss != nil || !t.IsClean()", "if busy || !t.IsClean()",
	},
	{
		"a tenure is passed on to a Lock of another lease", "engine/handoff.go",
		"!l.Lock.Passes || !l.Lock.CanHave(t) ||", "!l.Lock.Passes ||",
	},
	{
		"a grant is trusted for longer than its lease lasts (G2)", "engine/handoff.go",
		"time.Until(a.Sent.Add(a.Lease)) > a.Lease/2", "true",
	},
	{
		"a hold of a released level is live (G3)", "tenure/count.go",
		"last = h.levels == nil\n", "last = h.levels == nil || h.count < 3\n",
	},
	{
		"a level of a hold that is over begins (G3)", "tenure/hold.go",
		"case h.levels == nil, t.callerGone: // its last unlock has begun", "case t.callerGone:",
	},
	{
		"a level begins after Close has cancelled the others (G9)", "tenure/hold.go",
		"case t.isTold(): // Close has cancelled the open levels, and would miss this one", "case false:",
	},
	{
		"the lease of an inner level is not asked for", "tenure/hold.go",
		"c.Leases.Update(&t.Lease, a.Until(l.Lock), t.renewed())", "_ = c",
	},
	{
		"a lock is free before its least time is over (WithMinHold)", "tenure/hold.go",
		"if m.MinHold > 0 {", "if m.MinHold > time.Hour {",
	},
	{
		"a hold has no longest time (WithMaxHold)", "tenure/hold.go",
		"if m.MaxHold > 0 {", "if m.MaxHold < 0 {",
	},
	{
		"a Lock that waits only once waits on", "engine/attempt.go",
		"case l.Once:\n\t\t\tl.refusedOnce", "case l.Once && l.queued && l.Ctx.Err() != nil:\n\t\t\tl.refusedOnce",
	},
	{
		"a token falls back at a re-entry", "tenure/hold.go",
		"h.token = max(h.token, a.Token)", "h.token = a.Token",
	},
	{
		"a Lock asks no holder to give the lock up (WithAsked)", "ear/ear.go",
		"e.AskHolder(l.Ctx, l.Lock, holder)\n", "",
	},
}
