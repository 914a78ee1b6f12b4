package probe

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// maxPlan bounds the size of a plan in bytes.
const maxPlan = 4 << 20

// Serve is the probing process: it reads a plan from in, sends the traffic, and writes a report to out. [Start] runs it
// in the box's network namespace, without privileges. It needs no files and no environment.
func Serve(in io.Reader, out io.Writer) error {
	if err := unix.Prctl(unix.PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0); err != nil {
		return fmt.Errorf("giving up privileges: %w", err)
	}
	var p Plan
	if err := json.NewDecoder(io.LimitReader(in, maxPlan)).Decode(&p); err != nil {
		return fmt.Errorf("cannot parse the plan: %w", err)
	}
	send := sendSocket
	if p.Raw {
		link, err := openLink(p.Tasks)
		if err != nil {
			return err
		}
		defer link.close()
		send = link.send
	}
	return json.NewEncoder(out).Encode(Report{Answers: perform(p.Tasks, send)})
}

// perform runs the tasks concurrently, each at its time.
func perform(tasks []Task, send func(Task) Answer) []Answer {
	answers := make([]Answer, len(tasks))
	start := time.Now()
	var running sync.WaitGroup
	for i, t := range tasks {
		running.Go(func() {
			time.Sleep(time.Until(start.Add(t.After)))
			answers[i] = send(t)
			answers[i].ID = t.ID
		})
	}
	running.Wait()
	return answers
}
