// The program hierarchy moves goods between the shelves of a warehouse, and takes stock of all shelves. A move locks its two shelves, and
// excludes a stocktaking but not moves at other shelves.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"log"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"syscall"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/rlock"
)

func main() {
	name := flag.String("name", strconv.Itoa(os.Getpid()), "of this process, in its output")
	shelves := flag.Int("shelves", 5, "of the warehouse")
	fill := flag.Int64("fill", 0, "put so many goods on each shelf, and end")
	moves := flag.Int("moves", 0, "move goods so often")
	counts := flag.Int("counts", 0, "take stock so often")
	flag.Parse()
	log.SetFlags(0)
	log.SetPrefix(*name + ": ")

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal ends the process at once
	if err := run(ctx, *shelves, *fill, *moves, *counts); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, shelves int, fill int64, moves, counts int) error {
	rdb, err := connect()
	if err != nil {
		return err
	}
	defer rdb.Close()
	client, err := rlock.New(rdb, rlock.Options{})
	if err != nil {
		return err
	}
	defer client.Close()

	w := warehouse{rdb: rdb, client: client, shelves: max(shelves, 2)}
	if fill > 0 {
		return w.fill(ctx, fill)
	}
	for range moves {
		if err := w.move(ctx); err != nil {
			return err
		}
	}
	if moves > 0 {
		log.Printf("has moved goods %d times", moves)
	}
	for range counts {
		sum, err := rlock.DoValue(ctx, w.whole().Write(), w.sum) // while nobody moves anything
		if err != nil {
			return err
		}
		log.Printf("counts %d", sum)
	}
	return nil
}

// warehouse has a lock for the whole and one per shelf. The braces put all keys, including the goods, into one slot of a cluster.
type warehouse struct {
	rdb     rueidis.Client
	client  *rlock.Client
	shelves int
}

func (w warehouse) whole() *rlock.RWMutex { return w.client.RWMutex("{warehouse}:lock") }

func (w warehouse) shelf(i int) *rlock.Mutex {
	return w.client.Mutex("{warehouse}:lock:" + strconv.Itoa(i))
}

// move takes something from one shelf to another. Moves in opposite directions cannot deadlock: All takes all its locks or none.
func (w warehouse) move(ctx context.Context) error {
	from := rand.IntN(w.shelves)
	to := (from + 1 + rand.IntN(w.shelves-1)) % w.shelves
	return rlock.All(w.whole().Read(), w.shelf(from), w.shelf(to)).Do(ctx, func(ctx context.Context) error {
		has, err := w.goods(ctx, from)
		if err != nil || has == 0 {
			return err
		}
		had, err := w.goods(ctx, to)
		if err != nil {
			return err
		}
		return errors.Join(w.put(ctx, from, has-1), w.put(ctx, to, had+1))
	})
}

func (w warehouse) fill(ctx context.Context, each int64) error {
	return w.whole().Write().Do(ctx, func(ctx context.Context) error {
		for i := range w.shelves {
			if err := w.put(ctx, i, each); err != nil {
				return err
			}
		}
		return nil
	})
}

func (w warehouse) sum(ctx context.Context) (sum int64, err error) {
	for i := range w.shelves {
		has, err := w.goods(ctx, i)
		if err != nil {
			return 0, err
		}
		sum += has
	}
	return sum, nil
}

func (w warehouse) key(i int) string { return "{warehouse}:goods:" + strconv.Itoa(i) }

func (w warehouse) goods(ctx context.Context, i int) (int64, error) {
	return w.rdb.Do(ctx, w.rdb.B().Get().Key(w.key(i)).Build()).AsInt64()
}

func (w warehouse) put(ctx context.Context, i int, n int64) error {
	return w.rdb.Do(ctx, w.rdb.B().Set().Key(w.key(i)).Value(strconv.FormatInt(n, 10)).Build()).Error()
}

func connect() (rueidis.Client, error) {
	options, err := rueidis.ParseURL(cmp.Or(os.Getenv("REDIS_URL"), "redis://127.0.0.1:6379"))
	if err != nil {
		return nil, errors.New("REDIS_URL is not a Redis URL such as redis://user:password@127.0.0.1:6379")
	}
	rdb, err := rueidis.NewClient(options)
	if err != nil {
		return nil, fmt.Errorf("no Redis at %s: start redis-server, or set REDIS_URL: %w", strings.Join(options.InitAddress, ","), err)
	}
	return rdb, nil
}
