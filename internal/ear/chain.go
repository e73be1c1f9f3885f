package ear

// chain is a set of links with few bytes for each. The zero value is empty.
type chain[T any] struct{ first *link[T] }

// link is the place of an item in a chain, in one at most.
type link[T any] struct {
	prev, next *link[T]
	of         T
}

func (c *chain[T]) isEmpty() bool { return c.first == nil }

func (c *chain[T]) add(l *link[T]) {
	if l.next = c.first; l.next != nil {
		l.next.prev = l
	}
	c.first = l
}

// remove takes l out, if it is in.
func (c *chain[T]) remove(l *link[T]) {
	switch {
	case l.prev != nil:
		l.prev.next = l.next
	case c.first == l:
		c.first = l.next
	default:
		return
	}
	if l.next != nil {
		l.next.prev = l.prev
	}
	l.prev, l.next = nil, nil
}

// all yields the items. The one yielded last may be removed.
func (c *chain[T]) all(yield func(T) bool) {
	for l := c.first; l != nil; {
		next := l.next
		if !yield(l.of) {
			return
		}
		l = next
	}
}
