package lua

import (
	"context"

	"github.com/redis/rueidis"
)

// ReleaseResult is the result of Release.
type ReleaseResult struct {
	ReleaseReply
	Err error

	withoutQueue bool // to be repeated without the queue
}

// ReleaseAll is Release for many locks, also in several cluster slots, sent as one pipeline. The results are in the
// order of all.
func ReleaseAll(ctx context.Context, c rueidis.Client, all []ReleaseArgs) []ReleaseResult {
	results := make([]ReleaseResult, len(all))
	send := func(build func(script, rueidis.Builder, []string, []string) rueidis.Completed, which []int) (unknown []int) {
		if len(which) == 0 { // a tracing client would show a span without a name
			return nil
		}
		commands := make([]rueidis.Completed, len(which))
		for j, i := range which {
			var memory releaseMemory
			s, keys, args := all[i].call(&memory)
			// As a pipe, since rueidis takes a connection of its blocking pool for a long pipeline otherwise.
			commands[j] = build(s, c.B(), keys, args).ToPipe()
		}
		for j, result := range c.DoMulti(ctx, commands...) {
			i := which[j]
			results[i].ReleaseReply, results[i].Err = all[i].releasedBy(result)
			results[i].withoutQueue, _ = noQueue(results[i].Err)
			if isUnknown(result) {
				unknown = append(unknown, i)
			}
		}
		return unknown
	}
	each := make([]int, len(all))
	for i := range all {
		each[i] = i
	}
	send(script.byText, send(script.bySHA, each))
	var again []int
	for i := range all {
		if results[i].withoutQueue && (all[i].Key != "" || all[i].Fair.List != "") {
			all[i] = all[i].withoutQueue()
			again = append(again, i)
		}
	}
	if len(again) > 0 {
		send(script.byText, send(script.bySHA, again))
	}
	return results
}
