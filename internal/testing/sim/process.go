package sim

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/testing/memnet"
	"github.com/go-rlock/rlock/rlock"
)

// process is one Client, and one more for each further server.
type process struct {
	world  *world
	number int
	plan   Process
	ways   []*memnet.Way
	redis  []rueidis.Client
	locks  []*rlock.Client
	dead   atomic.Bool  // killed: its actions do not count
	ended  atomic.Bool  // killed, or its Clients are closed: its leftovers end with their leases
	dials  atomic.Int32 // of a late Client
	heard  atomic.Bool  // something from a server
	ctx    context.Context
	stop   context.CancelFunc
	closed sync.WaitGroup

	// world.mu guards the fields below.
	active  int                   // faults of its own, or of its server
	over    time.Time             // when it was ended
	began   time.Time             // when the first of these began, or of the last ones
	faulted time.Time             // when the last of these ended
	longest time.Duration         // any of these, so far
	busy    map[*oracle]int       // calls, and sections, that use it
	many    map[*oracle]int       // those that lock several at once
	keeps   map[*oracle]time.Time // until when it may have it after an unlock, see WithLinger
}

// quiet returns how long the process could reach its servers, and these remembered and answered.
func (p *process) quiet() time.Duration {
	p.world.mu.Lock()
	defer p.world.mu.Unlock()
	if p.active > 0 {
		return 0
	}
	return time.Since(p.faulted)
}

func (p *process) isDead() bool { return p.dead.Load() }

func (p *process) connect() error {
	for _, s := range p.world.servers {
		way := p.way(s)
		options := p.plan.Options
		options.WatchdogTimeout = p.world.plan.Watchdog
		if p.plan.Late {
			locks, err := p.openLate(way, options)
			if err != nil {
				return err
			}
			p.ways, p.locks = append(p.ways, way), append(p.locks, locks)
			continue
		}
		redis, err := client(way)
		if err != nil {
			return err
		}
		locks, err := rlock.New(p.apart(redis), options)
		if err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		p.ways, p.redis, p.locks = append(p.ways, way), append(p.redis, redis), append(p.locks, locks)
	}
	return nil
}

// way returns one to a server, on which faults act. They are written down.
func (p *process) way(s *server) *memnet.Way {
	return memnet.New(memnet.Options{
		Serve: s.redis.ServeConn,
		Latency: func() time.Duration {
			if p.plan.Jitter == 0 {
				return p.plan.Latency
			}
			return p.plan.Latency + p.world.jitter(p.plan.Jitter)
		},
		Watch: func(l *memnet.Link, toServer bool, data []byte, lost bool) {
			p.world.trace.add(link{p.number, s.number, l.Number()}, toServer, data, lost)
			if !toServer && !lost {
				p.heard.Store(true)
			}
		},
		Loses: func() bool { return p.world.loses(p.number) },
	})
}

// apart returns the client by which a process is one of its own, also for deadlock detection.
func (p *process) apart(redis rueidis.Client) rueidis.Client {
	if p.world.circles == nil {
		return redis
	}
	return p.world.circles.apart(redis, p.plan.Ahead)
}
