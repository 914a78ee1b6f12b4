package llm

import "sync"

// Sums is a [Meter] without limits: it sums up usage in memory, by box and model. The zero Sums is empty. Safe for concurrent use.
type Sums struct {
	mu    sync.Mutex
	boxes map[string]map[string]Usage
}

// Bounds of Sums. Names of models come from boxes and servers.
const (
	maxSummedBoxes  = 16384
	maxSummedModels = 64      // of a box
	OtherModels     = "other" // stands for further models of a box
)

// Reserve implements [Meter]. It refuses nothing.
func (s *Sums) Reserve(box, _ string, _ Call) (Reservation, error) { return &sum{s, box}, nil }

// sum is a request in progress.
type sum struct {
	of  *Sums
	box string
}

// Settle implements [Reservation].
func (r *sum) Settle(u Usage, model string, _ bool) {
	s := r.of
	s.mu.Lock()
	defer s.mu.Unlock()
	models := s.boxes[r.box]
	if models == nil {
		if len(s.boxes) == maxSummedBoxes {
			return
		}
		if s.boxes == nil {
			s.boxes = map[string]map[string]Usage{}
		}
		models = map[string]Usage{}
		s.boxes[r.box] = models
	}
	if _, known := models[model]; !known && len(models) >= maxSummedModels {
		model = OtherModels
	}
	models[model] = models[model].Plus(u)
}

// Of returns the usage of a box by model, as a copy.
func (s *Sums) Of(box string) map[string]Usage {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make(map[string]Usage, len(s.boxes[box]))
	for model, u := range s.boxes[box] {
		out[model] = u
	}
	return out
}
