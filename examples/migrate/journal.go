package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/redis/rueidis"
)

// section is a holder's pair of journal entries.
type section struct {
	order, side, owner, parcel, levels string
	from, to                           int64 // in ms since 1970, on the clock of Redis
}

// sections reads the journal in order. It fails if two holders were inside one order together, or counted the same parcel.
func sections(journal []rueidis.XRangeEntry) (all []*section, err error) {
	inside := make(map[string]*section) // by order
	parcels := make(map[string]int)
	for _, e := range journal {
		at, err := strconv.ParseInt(strings.Split(e.ID, "-")[0], 10, 64)
		if err != nil {
			return nil, fmt.Errorf("journal: %w", err)
		}
		v := e.FieldValues
		order, owner, in := v["order"], v["owner"], inside[v["order"]]
		switch {
		case v["event"] == "in" && in != nil:
			return nil, fmt.Errorf("%s: %s came in while %s was inside", order, owner, in.owner)
		case v["event"] == "in":
			in = &section{order: order, side: v["side"], owner: owner, from: at}
			all = append(all, in)
			inside[order] = in
			continue
		case in == nil || in.owner != owner:
			return nil, fmt.Errorf("%s: %s left, and was not inside", order, owner)
		}
		parcels[order]++
		in.to, in.parcel, in.levels = at, v["parcel"], v["levels"]
		if in.parcel != strconv.Itoa(parcels[order]) {
			return nil, fmt.Errorf("%s: %s counted parcel %s, want %d", order, owner, in.parcel, parcels[order])
		}
		delete(inside, order)
	}
	for order, in := range inside {
		return nil, fmt.Errorf("%s: %s did not leave", order, in.owner)
	}
	return all, nil
}
