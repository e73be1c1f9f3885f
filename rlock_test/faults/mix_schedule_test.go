package faults

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"time"
)

// mixStep is one fault of a schedule: it lasts For, and nothing fails for Rest after it. Each fault gives
// Proxy and N their meaning: the client and the call that it hits.
type mixStep struct {
	Fault     string
	Proxy, N  int
	For, Rest time.Duration
}

func (s mixStep) String() string {
	return fmt.Sprintf("%s(%d, %d) %v", s.Fault, s.Proxy, s.N, s.For.Round(time.Millisecond))
}

// mixRange is how long a fault lasts.
type mixRange struct{ from, to time.Duration }

// mixLanes are the faults. One lane hits the network, the other the server, at the same time.
func mixLanes(watchdog time.Duration) (network, server map[string]mixRange) {
	ms := time.Millisecond
	network = map[string]mixRange{
		"delay":        {300 * ms, 1000 * ms},
		"cut":          {0, 0},
		"lost reply":   {200 * ms, 800 * ms},
		"silent reply": {200 * ms, watchdog * 3 / 2},
		"lost request": {200 * ms, 800 * ms},
		"late request": {100 * ms, watchdog * 3 / 2},
		"late reply":   {100 * ms, watchdog * 3 / 2},

		"lost hand-off":       {500 * ms, 1000 * ms},
		"lost hand-off reply": {500 * ms, 1000 * ms},
		"late hand-off":       {500 * ms, watchdog * 3 / 2},
		"late hand-off reply": {500 * ms, watchdog * 3 / 2},

		"lost grant":              {500 * ms, 1000 * ms},
		"cut grant":               {500 * ms, 1000 * ms},
		"late grant":              {500 * ms, watchdog * 3 / 2},
		"lost grants and watches": {500 * ms, watchdog},

		"held subscribe": {200 * ms, 800 * ms},
		"black hole":     {1000 * ms, 3000 * ms},
		"refused":        {200 * ms, 1000 * ms},
		"-LOADING":       {200 * ms, 800 * ms},
		"-BUSY":          {200 * ms, 800 * ms},
		"-READONLY":      {200 * ms, 800 * ms},
	}
	server = map[string]mixRange{
		"kill clients": {0, 0},
		"kill pubsub":  {0, 0},
		"script flush": {300 * ms, 1000 * ms},
		"short stop":   {watchdog / 10, watchdog / 2},
		"long stop":    {watchdog * 5 / 4, watchdog * 2},
		"crash":        {0, 300 * ms},
		"delete":       {0, 0},
	}
	return network, server
}

// mixSchedule makes steps for the given time; the same seed makes the same steps. Each fault occurs once before
// any occurs twice.
func mixSchedule(rng *rand.Rand, faults map[string]mixRange, proxies int, d time.Duration) []mixStep {
	names := slices.Sorted(maps.Keys(faults)) // map order is random
	var steps []mixStep
	for d > 0 {
		for _, i := range rng.Perm(len(names)) {
			r := faults[names[i]]
			s := mixStep{Fault: names[i], Proxy: rng.IntN(proxies), N: 1 + rng.IntN(20), For: r.from}
			s.For += time.Duration(rng.Int64N(int64(r.to-r.from) + 1))
			s.Rest = 100*time.Millisecond + time.Duration(rng.Int64N(int64(700*time.Millisecond)))
			steps = append(steps, s)
			if d -= s.For + s.Rest; d <= 0 {
				return steps
			}
		}
	}
	return steps
}
