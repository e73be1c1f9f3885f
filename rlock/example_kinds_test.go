package rlock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-rlock/rlock/rlock"
)

func ExampleClient_FencedMutex() {
	client, closeAll := connect()
	defer closeAll()

	ledger := client.FencedMutex("ledger")
	for range 2 {
		_ = ledger.Do(context.Background(), func(ctx context.Context) error {
			token, _ := ledger.FencingToken(ctx)
			fmt.Println("write with token", token)
			return nil
		})
	}
	// Output:
	// write with token 1
	// write with token 2
}

// A transfer needs both accounts. It does not matter in which order its callers name them.
func ExampleAll() {
	client, closeAll := connect()
	defer closeAll()
	from, to := client.Mutex("account:1"), client.Mutex("account:2")

	err := rlock.All(from, to).Do(context.Background(), func(ctx context.Context) error {
		_, _, err := from.TryLock(rlock.Detach(ctx), 0)
		fmt.Println("others get the one:", err == nil)
		_, _, err = rlock.All(to, from).TryLock(rlock.Detach(ctx), 0)
		fmt.Println("or both:", err == nil)
		return nil
	})
	fmt.Println(err)
	// Output:
	// others get the one: false
	// or both: false
	// <nil>
}

// Whoever has waited longest is next, also if others ask at the moment of the unlock.
func ExampleClient_FairMutex() {
	client, closeAll := connect()
	defer closeAll()
	m := client.FairMutex("printer")

	_, unlock, _ := m.Lock(context.Background())
	waited := make(chan error)
	go func() { waited <- m.Do(context.Background(), func(context.Context) error { return nil }) }()
	_, _, err := m.TryLock(context.Background(), 0)
	fmt.Println("asked in between:", errors.Is(err, rlock.ErrNotAcquired))
	_ = unlock()
	fmt.Println("waited:", <-waited)
	// Output:
	// asked in between: true
	// waited: <nil>
}

// One Client for each of three independent servers. The lock outlives the death of any one of them.
func ExampleQuorum() {
	one, closeOne := connect()
	defer closeOne()
	two, closeTwo := connect()
	defer closeTwo()
	three, closeThree := connect()
	defer closeThree()

	const name = "nightly-report"
	report := rlock.Quorum(one.Mutex(name), two.Mutex(name), three.Mutex(name))
	err := report.Do(context.Background(), func(ctx context.Context) error {
		fmt.Println("a majority of the servers has the lock")
		return nil
	})
	fmt.Println(err)
	// Output:
	// a majority of the servers has the lock
	// <nil>
}

// Many may read at a time, and one may write. A writer that has written can go on as a reader, without letting another writer in.
func ExampleRWMutex() {
	client, closeAll := connect()
	defer closeAll()
	prices := client.RWMutex("prices")
	ctx := context.Background()

	err := prices.Read().Do(ctx, func(ctx context.Context) error {
		fmt.Println("read the prices")
		return nil
	})
	fmt.Println(err)

	writer, unlockWriter, err := prices.Write().Lock(ctx)
	if err != nil {
		panic(err)
	}
	defer func() { fmt.Println(unlockWriter()) }() // for a downgrade that fails; after one it has nothing left to do
	fmt.Println("write the prices")
	reader, unlock, err := prices.Downgrade(writer)
	if err != nil {
		panic(err)
	}
	fmt.Println("read them again:", reader.Err())
	fmt.Println(unlock())
	// Output:
	// read the prices
	// <nil>
	// write the prices
	// read them again: <nil>
	// <nil>
	// <nil>
}

// One reader at a time may become the writer: it decides as a reader, and writes only if it has to.
func ExampleUpgradeable() {
	client, closeAll := connect()
	defer closeAll()
	cache := client.RWMutex("cache").Upgradeable()
	stale := true

	err := cache.Do(context.Background(), func(ctx context.Context) error {
		if !stale {
			return nil
		}
		return cache.UpgradeDo(ctx, func(context.Context) error { // waits for the other readers to leave
			fmt.Println("renew the cache")
			return nil
		})
	})
	fmt.Println(err)
	// Output:
	// renew the cache
	// <nil>
}
