package redlock

import "time"

// clock is the seam through which every decision about time goes, so that tests
// can make time jump, stop and sleep. start is read before a request is sent,
// look before a decision is taken; they differ only in which way the reading of
// the time asleep may err: start never says too little, look never too much.
type clock interface {
	start() instant
	look() instant
}

// systemClock reads the clocks of this machine.
type systemClock struct{}

func (systemClock) start() instant {
	now := time.Now()
	return instant{mono: now, wall: now.UnixNano(), asleep: asleepAtMost()}
}

func (systemClock) look() instant {
	now := time.Now()
	return instant{mono: now, wall: now.UnixNano(), asleep: asleepAtLeast()}
}
