package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/rueidis"

	"github.com/go-rlock/rlock/internal/deadlock"
	"github.com/go-rlock/rlock/pubsub"
)

const usageDeadlocks = `usage: rlock deadlocks [flags]

Asks the processes of this Redis whose programs have Options.Deadlock for the
Locks that have waited for long under other locks, and shows them: deadlocks
first, then the others, and where each of those leads to. It knows nothing of
Redisson, of older versions and of programs without the option.

  -n N         look N times, a second apart (default 1)
  -json        a line of JSON for each of them and look
` + usageTarget + `
exit code  0 no deadlock   1 a deadlock, at the last look   2 usage
           125 Redis failed
`

// answersTime is how long the processes have to answer.
const answersTime = time.Second

// standstill is a wait as it is printed for programs.
type standstill struct {
	deadlock.Seen

	Deadlock int `json:"deadlock,omitempty"` // the number of the one that it is in, from 1
}

func (p *program) deadlocks(args []string) int {
	var t target
	flags := p.flags("deadlocks", &t)
	times := flags.Int("n", 1, "")
	asJSON := flags.Bool("json", false, "")
	if code, ok := p.parse(flags, args); !ok {
		return code
	}
	switch {
	case flags.NArg() > 0:
		return p.misuse(errors.New("deadlocks takes flags only"), "deadlocks")
	case *times < 1:
		return p.misuse(errors.New("-n must be at least 1"), "deadlocks")
	}
	return p.interruptibly(func(ctx context.Context, _ func()) int {
		v, code, ok := p.open(ctx, t)
		if !ok {
			return code
		}
		defer v.close()
		for i := 1; ; i++ {
			w, err := v.standstills(ctx)
			if err != nil {
				return p.failed(ctx, v.at(err))
			}
			cycles := deadlock.Cycles(w.waits)
			if *asJSON {
				p.jsonStandstills(w, cycles)
			} else {
				p.printStandstills(w, cycles)
			}
			switch {
			case i == *times && len(cycles) > 0:
				return exitFailed
			case i == *times:
				return 0
			}
			select {
			case <-time.After(time.Second):
			case <-ctx.Done():
				return endCode(ctx)
			}
		}
	})
}

// standstills are the long waits that the Clients have told of.
type standstills struct {
	waits  []deadlock.Seen
	asked  int             // Clients
	silent int             // of these
	ears   map[string]bool // the ids of the Clients that can be asked
}

// earPrefix begins the channel on which a Client is spoken to.
var earPrefix = strings.TrimSuffix(pubsub.EarChannel(""), "}")

// ears are the channels on which Clients listen, and whether these are sharded.
func (v *viewer) ears(ctx context.Context) (map[string]bool, error) {
	all := make(map[string]bool)
	var down error
	answers := false
	for _, n := range nodes(v.rdb) {
		names, err := n.Do(ctx, n.B().PubsubChannels().Pattern(pubsub.EarChannel("*")).Build()).AsStrSlice()
		if err != nil {
			down = fmt.Errorf("%s: PUBSUB: %w", n.addr, err)
			continue
		}
		answers = true
		for _, name := range names {
			all[name] = false
		}
		names, _ = n.Do(ctx, n.B().PubsubShardchannels().Pattern(pubsub.EarChannel("*")).Build()).AsStrSlice() // before Redis 7 there are none
		for _, name := range names {
			all[name] = true
		}
	}
	if !answers {
		return nil, down
	}
	return all, nil
}

// standstills asks all Clients that listen.
func (v *viewer) standstills(ctx context.Context) (w standstills, err error) {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	ears, err := v.ears(ctx)
	if err != nil || len(ears) == 0 {
		return w, err
	}
	var b [16]byte
	_, _ = rand.Read(b[:])                                                      // it never fails
	id := fmt.Sprintf("%x-%x-%x-%x-%x", b[:4], b[4:6], b[6:8], b[8:10], b[10:]) // in the form of a Client's
	answers, err := v.hear(ctx, pubsub.EarChannel(id), ears)
	if err != nil {
		return w, err
	}
	question := pubsub.Spoken{Kind: deadlock.SeenKind, Payload: deadlock.Question(id)}.String()
	w.ears = make(map[string]bool)
	for channel, sharded := range ears {
		w.ears[strings.TrimSuffix(strings.TrimPrefix(channel, earPrefix), "}")] = true
		cmd := v.rdb.B().Publish().Channel(channel).Message(question).Build()
		if sharded {
			cmd = v.rdb.B().Spublish().Channel(channel).Message(question).Build()
		}
		if err := v.rdb.Do(ctx, cmd).Error(); err != nil {
			return w, fmt.Errorf("PUBLISH: %w", err)
		}
		w.asked++
	}
	over := time.After(answersTime)
	missing := make(map[string]int) // answers of Clients that have said how many there are
	for w.silent = w.asked; w.silent > 0 || slices.ContainsFunc(w.waits, func(s deadlock.Seen) bool { return missing[s.Client] > 0 }); {
		select {
		case text := <-answers:
			said, _ := pubsub.ReadSpoken(text)
			_, of, s, ok := deadlock.ReadAnswer(said.Payload)
			switch {
			case said.Kind != deadlock.SeenKind || !ok:
				continue
			case s == nil:
				w.silent--
				continue
			}
			if _, known := missing[s.Client]; !known {
				missing[s.Client] = of
				w.silent--
			}
			missing[s.Client]--
			w.waits = append(w.waits, *s)
		case <-over:
			slices.SortFunc(w.waits, byBegin)
			return w, nil
		case <-ctx.Done():
			return w, ctx.Err()
		}
	}
	slices.SortFunc(w.waits, byBegin)
	return w, nil
}

func byBegin(a, b deadlock.Seen) int { return a.Began.Compare(b.Began) }

// hear listens on a channel, on sharded ones as well if one of the ears is, and returns when it does.
func (v *viewer) hear(ctx context.Context, channel string, ears map[string]bool) (<-chan string, error) {
	answers := make(chan string, 1000)
	listens := []rueidis.Completed{v.rdb.B().Subscribe().Channel(channel).Build()}
	for _, sharded := range ears {
		if sharded {
			listens = append(listens, v.rdb.B().Ssubscribe().Channel(channel).Build())
			break
		}
	}
	ready := make(chan error, 2*len(listens))
	for _, listen := range listens {
		hooked := rueidis.WithOnSubscriptionHook(ctx, func(rueidis.PubSubSubscription) { ready <- nil })
		go func() { // ends with ctx
			err := v.rdb.Receive(hooked, listen, func(m rueidis.PubSubMessage) {
				select {
				case answers <- m.Message:
				default:
				}
			})
			if err != nil {
				ready <- fmt.Errorf("SUBSCRIBE: %w", err)
			}
		}()
	}
	for range listens {
		select {
		case err := <-ready:
			if err != nil {
				return nil, err
			}
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	return answers, nil
}

func (p *program) jsonStandstills(w standstills, cycles [][]*deadlock.Seen) {
	for i := range w.waits {
		s := standstill{Seen: w.waits[i]}
		s.Deadlock = 1 + slices.IndexFunc(cycles, func(c []*deadlock.Seen) bool { return slices.Contains(c, &w.waits[i]) })
		p.json(s)
	}
}

func (p *program) printStandstills(w standstills, cycles [][]*deadlock.Seen) {
	known := make(map[*deadlock.Seen]bool)
	for i, cycle := range cycles {
		fmt.Fprintf(p.out, "deadlock %d\n", i+1)
		for j, s := range cycle {
			known[s] = true
			before := cycle[(j+len(cycle)-1)%len(cycle)]
			at := slices.IndexFunc(s.Holds, func(h deadlock.SeenHold) bool { return slices.Contains(before.Blockers, h.Owner) })
			fmt.Fprintf(p.out, "  %s\n", clean(waitText(s, s.Holds[max(at, 0):max(at, 0)+1])))
		}
	}
	others := false
	for i := range w.waits {
		s := &w.waits[i]
		if known[s] {
			continue
		}
		if !others && len(cycles) > 0 {
			fmt.Fprintln(p.out, "others that wait")
		}
		others = true
		fmt.Fprintf(p.out, "  %s\n", clean(waitText(s, s.Holds)))
		for _, owner := range s.Blockers {
			fmt.Fprintf(p.out, "    held by %s: %s\n", clean(owner), w.leadsTo(owner))
		}
	}
	if w.silent > 0 {
		fmt.Fprintf(p.err, "rlock: %d of %d Clients did not answer within %s\n", w.silent, w.asked, answersTime)
	}
}

// waitText says what a wait holds, and what it waits for.
func waitText(s *deadlock.Seen, holds []deadlock.SeenHold) string {
	var held []string
	for _, h := range holds {
		held = append(held, fmt.Sprintf("%q for %s", h.Name, short(time.Since(h.Since))))
	}
	return fmt.Sprintf("%s (pid %d, client %s) holds %s and waits for %q for %s",
		s.Host, s.PID, s.Client, strings.Join(held, ", "), s.Lock, short(time.Since(s.Began)))
}

// leadsTo says where it goes on from an owner.
func (w *standstills) leadsTo(owner string) string {
	for i := range w.waits {
		if s := &w.waits[i]; slices.ContainsFunc(s.Holds, func(h deadlock.SeenHold) bool { return h.Owner == owner }) {
			return fmt.Sprintf("waits for %s", printable(s.Lock))
		}
	}
	id, _, _ := strings.Cut(owner, ":")
	if w.ears[id] {
		return "waits for nothing"
	}
	return "says nothing (Redisson, an older version, no Options.Deadlock, or it has not waited under locks yet)"
}
