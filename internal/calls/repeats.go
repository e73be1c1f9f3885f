package calls

import (
	"reflect"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// repeats says who may send a client's command again by himself.
type repeats uint8 // a context has one

const (
	nobody  repeats = iota
	wrapper         // a type around rueidis's client, if it likes
	expiry          // rueidis, for a connection whose lifetime (ClientOption.ConnLifetime) is over: all under way, also what ran; or nothing is known
)

// repeatsOf looks at rueidis's own client (v1.0.79), in rdb or a wrapper's fields.
func repeatsOf(rdb rueidis.Client) repeats {
	if late, ok := rdb.(interface{ MayRepeat() bool }); ok { // it is not connected yet
		if late.MayRepeat() {
			return expiry
		}
		return nobody
	}
	return repeatsIn(reflect.ValueOf(rdb), 0)
}

var (
	clientType = reflect.TypeFor[rueidis.Client]()
	optionType = reflect.TypeFor[rueidis.ClientOption]()
)

const deepest = 8 // so many wrappers are looked into: one may contain itself

func repeatsIn(v reflect.Value, depth int) repeats {
	for v.Kind() == reflect.Interface || v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if v.Kind() != reflect.Struct || depth > deepest {
		return expiry
	}
	if v.Type().PkgPath() == optionType.PkgPath() {
		return repeatsOfOwn(v)
	}
	found := expiry
	for i := range v.NumField() {
		if !v.Type().Field(i).Type.Implements(clientType) {
			continue
		}
		if found = wrapper; repeatsIn(v.Field(i), depth+1) == expiry {
			return expiry
		}
	}
	return found
}

func repeatsOfOwn(v reflect.Value) repeats {
	if f := v.FieldByName("hasLftm"); f.Kind() == reflect.Bool && !f.Bool() {
		return nobody
	}
	// One with replicas has the options; with EnableRedirect it sends commands again, too.
	if f := reflect.Indirect(v.FieldByName("opt")); f.Kind() == reflect.Struct && f.Type() == optionType &&
		f.FieldByName("ConnLifetime").Int() == 0 && !f.FieldByName("Standalone").FieldByName("EnableRedirect").Bool() {
		return nobody
	}
	return expiry
}

// How often rueidis has sent a command shows in what it asks of the command's context (v1.0.79):
//
//	pipe.Do, for a command       Err, then Deadline to send it at once, or Done to wait in the queue; neither if the connection is closed
//	_newPipe, for a connection   Deadline, Err, Deadline, after whatever the dialler asked
//	pool.Acquire                 Err, and mostly nothing else
//
// A command that follows its slot to another node looks as if it were repeated, and so does one that dials after a wrapper asked for Err.
// Of a command under a ctx that a wrapper derived with a time-out or a cancellation nothing shows: only what derives the ctx asks.

// question is a method of a context.
type question int

const (
	askedErr question = iota
	askedDeadline
	askedDone
)

// sending is how far rueidis has got with a command.
type sending int32

const (
	unsent    sending = iota
	dials             // Deadline came first: so it is, unless a wrapper of the client asked
	looked            // Err, so far without consequences
	greets            // Err after Deadline
	dialled           // it has a new connection
	sent              // once
	sentAgain         // it may have run twice
)

var afterQuestion = [...][3]sending{
	unsent:    {askedErr: looked, askedDeadline: dials, askedDone: unsent},
	dials:     {askedErr: greets, askedDeadline: dials, askedDone: unsent},
	looked:    {askedErr: looked, askedDeadline: sent, askedDone: sent},
	greets:    {askedErr: looked, askedDeadline: dialled, askedDone: sent},
	dialled:   {askedErr: looked, askedDeadline: dialled, askedDone: dialled},
	sent:      {askedErr: sentAgain, askedDeadline: sent, askedDone: sent},
	sentAgain: {askedErr: sentAgain, askedDeadline: sentAgain, askedDone: sentAgain},
}

// seen is a [sending]. A dialler may ask on goroutines of its own.
type seen struct{ atomic.Int32 }

func (s *seen) asked(q question) {
	for {
		is := s.Load()
		if next := int32(afterQuestion[is][q]); next == is || s.CompareAndSwap(is, next) {
			return
		}
	}
}
