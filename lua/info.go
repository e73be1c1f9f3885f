package lua

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/redis/rueidis"
)

var infoScript = script{Text("info"), "21fdf92f10195ce2d2cdfa234a21457e2f2314ed"}

// InfoArgs are the arguments of Look.
type InfoArgs struct {
	Name    string
	Queue   string // the key of the lock's waiters; "": neither it nor the counter is read
	List    bool   // it is a list, not a sorted set
	Fence   string // the key of the fencing counter; "": none
	Publish Publish
}

// Info is the state of a lock.
type Info struct {
	TTL         time.Duration     // -1 ms: without expiry; -2 ms: the lock is free
	Fields      map[string]string // of the hash
	Token       int64             // the highest given out
	Subscribers int64             // of the unlock channel; -1: unknown to the server
	Queue       []string          // the first thousand
}

// Look reads the state of a lock.
func Look(ctx context.Context, c rueidis.Client, a InfoArgs) (info Info, err error) {
	keys := []string{a.Name}
	if a.Queue != "" {
		keys = append(keys, a.Queue)
		if a.Fence != "" {
			keys = append(keys, a.Fence)
		}
	}
	count, kind := "numsub", "zset"
	if a.Publish.Sharded {
		count = "shardnumsub"
	}
	if a.List {
		kind = "list"
	}
	parts, err := infoScript.run(ctx, c, keys, count, a.Publish.Name, kind).ToArray()
	if err == nil && len(parts) != 5 {
		err = errors.New("unknown reply")
	}
	if err != nil {
		return info, failed("info", err, keys[1:]...)
	}
	ttl, err1 := parts[0].AsInt64()
	fields, err2 := parts[1].AsStrSlice()
	token, err3 := parts[2].ToString()
	subscribers, err4 := parts[3].AsInt64()
	queue, err5 := parts[4].AsStrSlice()
	if err := errors.Join(err1, err2, err3, err4, err5); err != nil {
		return info, failed("info", err)
	}
	info = Info{TTL: pttl(ttl), Fields: make(map[string]string), Subscribers: subscribers, Queue: queue}
	for i := 0; i+1 < len(fields); i += 2 {
		info.Fields[fields[i]] = fields[i+1]
	}
	if token != "" {
		if info.Token, err = strconv.ParseInt(token, 10, 64); err != nil {
			return info, failed("info", err)
		}
	}
	return info, nil
}
