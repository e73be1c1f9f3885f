// Cheerego is the real cheerego/go-redisson behind a part of the line protocol of ../../redisson/src/main/java/interop/Peer.java:
//
//	cheerego HOST:PORT
//
// A thread is a goroutine, the owner that cheerego knows.
//
//	trylock NAME WAIT_MS [LEASE_MS]        RLock.TryLock                          true|false
//	unlock NAME                            RLock.Unlock                                    -
//	mutex.trylock NAME WAIT_MS [LEASE_MS]  Mutex.TryLock                          true|false
//	mutex.unlock NAME                      Mutex.Unlock                                    -
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	godisson "github.com/cheerego/go-redisson"
	"github.com/go-redis/redis/v8"
)

func main() {
	rdb := redis.NewClient(&redis.Options{Addr: os.Args[1]})
	g := godisson.NewGodisson(rdb)
	answer("ready", func() (string, error) { return "cheerego", rdb.Ping(context.Background()).Err() })
	threads := make(map[string]chan []string)
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		words := strings.Split(lines.Text(), " ")
		calls := threads[words[1]]
		if calls == nil {
			calls = make(chan []string, 16)
			threads[words[1]] = calls
			go func() { // ends with the process
				for words := range calls {
					answer(words[0], func() (string, error) { return perform(g, words[2], words[3:]) })
				}
			}()
		}
		calls <- words
	}
}

func perform(g *godisson.Godisson, op string, args []string) (string, error) {
	name, err := url.QueryUnescape(args[0])
	if err != nil {
		return "", err
	}
	var lock godisson.Locker = g.NewRLock(name)
	if mutex, ok := strings.CutPrefix(op, "mutex."); ok {
		op, lock = mutex, g.NewMutex(name)
	}
	switch op {
	case "trylock":
		wait, lease := number(args, 1), number(args, 2)
		err := lock.TryLock(wait, lease)
		if errors.Is(err, godisson.ErrLockNotObtained) {
			return "false", nil
		}
		return "true", err
	case "unlock":
		_, err := lock.Unlock()
		return "-", err
	}
	return "", fmt.Errorf("unknown operation %s", op)
}

// number returns an argument in milliseconds; without it -1, which is cheerego's word for a lease that it renews.
func number(args []string, i int) int64 {
	if i >= len(args) {
		return -1
	}
	n, _ := strconv.ParseInt(args[i], 10, 64)
	return n
}

func answer(id string, call func() (string, error)) {
	began := time.Now()
	value, err := call()
	ended := time.Now()
	result := "ok " + value
	if err != nil {
		result = fmt.Sprintf("err %T %s", err, url.QueryEscape(err.Error()))
	}
	fmt.Fprintln(os.Stdout, id, ended.UnixMicro(), ended.Sub(began).Microseconds(), result)
}
