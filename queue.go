package redlock

import "time"

// queue is a list of requests that can be left from the middle: a caller that
// gives up takes its request out, so what waits for a node that hangs is only
// what somebody still wants.
type queue struct {
	head, tail *request
	len        int
}

func (l *queue) push(q *request) {
	q.asked = time.Now()
	q.state = queued
	q.prev, q.next = l.tail, nil
	if l.tail == nil {
		l.head = q
	} else {
		l.tail.next = q
	}
	l.tail = q
	l.len++
}

// unpop puts a request back at the head.
func (l *queue) unpop(q *request) {
	q.state = queued
	q.prev, q.next = nil, l.head
	if l.head == nil {
		l.tail = q
	} else {
		l.head.prev = q
	}
	l.head = q
	l.len++
}

func (l *queue) pop() *request {
	q := l.head
	l.drop(q)
	return q
}

// drop takes a request out; one that is not in the queue is left alone.
func (l *queue) drop(q *request) {
	if q.state != queued {
		return
	}
	q.state = parked
	if q.prev == nil {
		l.head = q.next
	} else {
		q.prev.next = q.next
	}
	if q.next == nil {
		l.tail = q.prev
	} else {
		q.next.prev = q.prev
	}
	q.prev, q.next = nil, nil
	l.len--
}
