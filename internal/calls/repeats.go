package calls

import (
	"reflect"
	"sync/atomic"

	"github.com/redis/rueidis"
)

// mayRepeat reports whether connections of rdb have a lifetime (ClientOption.ConnLifetime), or whether that cannot be seen, say
// because another type is wrapped around the client. When one expires, rueidis sends the commands under way on it again by
// itself, also those that ran.
func mayRepeat(rdb rueidis.Client) bool {
	if late, ok := rdb.(interface{ MayRepeat() bool }); ok { // it is not connected yet
		return late.MayRepeat()
	}
	v := reflect.Indirect(reflect.ValueOf(rdb))
	if v.Kind() != reflect.Struct {
		return true
	}
	f := v.FieldByName("hasLftm") // of all clients of rueidis v1.0.79 but standalone ones with replicas
	return f.Kind() != reflect.Bool || f.Bool()
}

// How often rueidis has sent a command shows in what it asks of the command's context (v1.0.79):
//
//	pipe.Do, for a command       Err, then Deadline to send it at once, or Done to wait in the queue; neither if the connection is closed
//	_newPipe, for a connection   Deadline, Err, Deadline, after whatever the dialler asked
//	pool.Acquire                 Err, and mostly nothing else
//
// A command that follows its slot to another node looks as if it were repeated.

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
