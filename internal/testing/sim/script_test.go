package sim

import (
	"fmt"
	"net"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/go-rlock/rlock/internal/testing/memredis"
)

// TestScripts replays all messages of a world's processes to the simulator's server and to miniredis. Both must answer the same, byte for
// byte, and end with the same keys.
func TestScripts(t *testing.T) {
	for k := range Permits + 1 {
		for seed := range uint64(4) {
			t.Run(fmt.Sprintf("%v/%d", k, seed), func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					d := 20 * time.Second
					if k == Semaphore || k == Permits {
						d = 4 * time.Second // miniredis takes long for its scripts
					}
					plan := NewPlan(seed, Limits{Processes: 5, Time: d, Kinds: []Kind{k}, Calm: true})
					plan.Hold, plan.Think, plan.Long = time.Millisecond, 20*time.Millisecond, 0 // otherwise a seed may draw one with little traffic
					for i := range plan.Processes {
						plan.Processes[i].Options.Replicas = 0 // miniredis has none
					}
					w := newWorld(plan)
					if r := w.play(); r.Sections < 10 || len(r.Violations) > 0 {
						t.Errorf("%d sections, %v", r.Sections, r.Violations)
					}
					replay(t, w)
				})
			})
		}
	}
}

func replay(t *testing.T, w *world) {
	t.Helper()
	ours, err := startServer(0, memredis.Options{DropEarly: true}) // as miniredis does
	if err != nil {
		t.Fatal(err)
	}
	theirs := miniredis.NewMiniRedis()
	theirs.ClockTTL(true)
	conn, err := theirs.Dial()
	if err != nil {
		t.Fatal(err)
	}
	defer ours.redis.Close()
	defer theirs.Close()
	defer func() { _ = conn.Close() }()
	redis, ok := ours.redis.(interface { // as miniredis has them
		Seed(n int)
		Dump() string
	})
	if !ok {
		t.Fatalf("%T is no miniredis", ours.redis)
	}
	redis.Seed(1) // for hrandfield
	theirs.Seed(1)

	links := make(map[link][2]*listener)
	began := time.Now()
	for _, said := range w.trace.lines {
		if said.note != "" || said.server != 0 || !said.up {
			continue
		}
		pair, known := links[said.link]
		if !known {
			pair = [2]*listener{listen(ours.redis), listen(theirs.Server())}
			links[said.link] = pair
		}
		time.Sleep(time.Until(began.Add(said.at)))
		theirs.SetTime(time.Now().Truncate(time.Millisecond))
		for _, l := range pair {
			if _, err := l.conn.Write(said.data); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		for n, pair := range links {
			if a, b := pair[0].take(), pair[1].take(); a != b {
				t.Fatalf("%v: p%d says %s, and link %d hears\n%s\nwhere miniredis says\n%s", said.at, said.process, readable(said.data), n, a, b)
			}
		}
	}
	_, _ = ours.exists(""), theirs.Exists("") // expired keys go when somebody looks
	if a, b := redis.Dump(), theirs.Dump(); a != b {
		t.Errorf("at the end there is\n%s\nwhere miniredis has\n%s", a, b)
	}
	for _, pair := range links {
		for _, l := range pair {
			_ = l.conn.Close()
		}
	}
}

// listener is a connection with the data received so far.
type listener struct {
	conn  net.Conn
	heard []byte
}

// listen returns a connection to a server. Its goroutine ends with it.
func listen(r interface{ ServeConn(conn net.Conn) }) *listener {
	client, served := net.Pipe()
	r.ServeConn(served)
	l := &listener{conn: client}
	go func() {
		b := make([]byte, 1<<12)
		for {
			n, err := client.Read(b)
			if err != nil {
				return
			}
			l.heard = append(l.heard, b[:n]...) // read when all are asleep
		}
	}()
	return l
}

// take returns the data received since the last call. All other goroutines must be asleep.
func (l *listener) take() string {
	text := string(l.heard)
	l.heard = nil
	return text
}
