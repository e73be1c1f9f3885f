package lua

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"github.com/redis/rueidis"
)

// Scripts for many locks at once. Each includes the script for one lock, and does the same for every lock.

var (
	acquireAllScript  = script{calling("acquire", "acquire_all"), "3b7352510d50c3e9de178da2d9b2ca35270d46fa"}
	releaseEachScript = script{calling("release", "release_each"), "c815b6d4136f4cc9c505d460d5a62b3ad89db95c"}
)

// calling returns the text of a script that calls another script as a function of its KEYS and ARGV.
func calling(callee, name string) string {
	return "local function " + callee + "(KEYS, ARGV)\n" + Text(callee) + "end\n" + Text(name)
}

// AcquireAllReply is Redis's answer.
type AcquireAllReply struct {
	Acquired bool    // all of them, or none
	Tokens   []int64 // if Acquired: of each lock as in AcquireReply

	Refused int          // otherwise: the index of a lock with another owner
	Refusal AcquireReply // the status is Held
}

// AcquireAll takes all locks, for new owners, or none. On a cluster all keys must hash to one slot. It uses only
// Name, Fence, Owner and Lease of the arguments. A repeat after a lost reply does not count twice.
func AcquireAll(ctx context.Context, c rueidis.Client, all []AcquireArgs) (AcquireAllReply, error) {
	keys := make([]string, 0, 2*len(all))
	args := make([]string, 0, len(all)+3)
	row, of := 0, 0 // where the arguments of the row begin, and the number of its locks
	for i := range all {
		a := &all[i]
		var memory [3]string
		its := keysOf(&memory, a.Name, a.Fence, "")
		keys = append(keys, its...)
		lease, n := millis(a.Lease), strconv.Itoa(len(its))
		if of == 0 || args[row+1] != lease || args[row+2] != n {
			row, of = len(args), 0
			args = append(args, "", lease, n)
		}
		of++
		args[row] = strconv.Itoa(of)
		args = append(args, a.Owner)
	}
	reply, err := acquiredAll(acquireAllScript.run(ctx, c, keys, args...), len(all))
	if err != nil {
		return AcquireAllReply{}, failed("acquire_all", err)
	}
	return reply, nil
}

func acquiredAll(r rueidis.RedisResult, n int) (reply AcquireAllReply, err error) {
	s, err := r.ToArray()
	s, other := cutOther(s)
	switch {
	case err != nil:
		return reply, unanswered(err)
	case len(s) == 1:
		var zero int64
		if zero, err = integer(s[0]); err == nil && zero != 0 {
			err = fmt.Errorf("unknown reply {%d}", zero)
		}
		reply.Acquired, reply.Tokens = err == nil, make([]int64, n)
	case len(s) == 2 && s[1].IsArray():
		reply.Acquired = true
		if reply.Tokens, err = integers(s[1]); err == nil && len(reply.Tokens) != n {
			err = fmt.Errorf("%d tokens for %d locks", len(reply.Tokens), n)
		}
	case len(s) == 3 && s[0].IsInt64() && s[1].IsInt64() && s[2].IsString():
		which, _ := s[0].ToInt64()
		ttl, _ := s[1].ToInt64()
		holder, _ := s[2].ToString()
		if which < 1 || which > int64(n) {
			err = fmt.Errorf("lock %d of %d is refused", which, n)
		}
		reply.Refused, reply.Refusal = int(which-1), AcquireReply{Status: Held, TTL: duration(ttl), Holder: holder, Other: other}
	default:
		err = errors.New("the reply is neither tokens nor a refusal")
	}
	return reply, err
}

// ReleaseEach is Release for many locks in one call. On a cluster all keys must hash to one slot. The results are in
// the order of all; an error of the call itself stands for all of them. A call that may not use a queue is refused,
// not repeated.
func ReleaseEach(ctx context.Context, c rueidis.Client, all []ReleaseArgs) ([]ReleaseResult, error) {
	keys := make([]string, 0, 3*len(all))
	args := make([]string, 0, 2*len(all)+8)
	row, of := 0, 0      // where the arguments of the row begin, and the number of its locks
	var common [9]string // its others: the number of keys, and the arguments without the owner and the channel
	for i := range all {
		var memory releaseMemory
		_, its, own := all[i].call(&memory)
		keys = append(keys, its...)
		owner, channel, n := own[0], own[1], strconv.Itoa(len(its))
		now := [9]string{n}
		copy(now[1:], own[2:])
		if of == 0 || now != common || args[row+2] != strconv.Itoa(len(own)) {
			row, of, common = len(args), 0, now
			args = append(args, "", n, strconv.Itoa(len(own)))
			args = append(args, own[2:]...)
		}
		of++
		args[row] = strconv.Itoa(of)
		args = append(args, owner, channel)
	}
	reply, err := releaseEachScript.run(ctx, c, keys, args...).ToMessage()
	var replies []rueidis.RedisMessage
	if err == nil {
		replies, err = repliesOf(reply, len(all))
	}
	if err != nil {
		return nil, failed("release_each", unanswered(err))
	}
	results := make([]ReleaseResult, len(all))
	for i := range all {
		results[i].ReleaseReply, results[i].Err = all[i].released(replies[i])
	}
	return results, nil
}

// repliesOf returns the reply for each of n locks. A 1 stands for all.
func repliesOf(reply rueidis.RedisMessage, n int) ([]rueidis.RedisMessage, error) {
	if !reply.IsInt64() {
		replies, err := reply.ToArray()
		if err == nil && len(replies) != n {
			err = fmt.Errorf("%d answers for %d locks", len(replies), n)
		}
		return replies, err
	}
	if one, _ := reply.ToInt64(); one != 1 {
		return nil, fmt.Errorf("unknown reply %d", one)
	}
	return slices.Repeat([]rueidis.RedisMessage{reply}, n), nil
}
