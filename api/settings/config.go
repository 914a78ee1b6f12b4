package settings

import (
	"maps"
	"net/http"
	"slices"

	"boxgate/api"
	"boxgate/api/problem"
	"boxgate/api/rest"
	"boxgate/api/spec"
)

type labelBody struct {
	Label string `json:"label"`
}

type labelsView struct {
	Message string   `json:"message"`
	Labels  []string `json:"labels" doc:"all labels of the box"`
}

// metadataBody has the texts that programs keep with a box.
type metadataBody struct {
	Metadata map[string]string `json:"metadata" doc:"all entries; others are removed. At most 64, with keys of at most 128 bytes, values of 2,048, and 16 KiB together"`
}

type runnerBody struct {
	CustomRunner *api.CustomRunner `json:"custom_runner"`
}

type runnerView struct {
	Message      string           `json:"message"`
	CustomRunner api.CustomRunner `json:"custom_runner"`
}

type skillBody struct {
	SkillID string `json:"skill_id" doc:"owner/repository or owner/repository/skill"`
}

type skillsView struct {
	Message       string   `json:"message"`
	EnabledSkills []string `json:"enabled_skills" doc:"all skills of the box"`
}

// configure changes the box in the path of the request.
func (e *Endpoints) configure(r *http.Request, change func(*api.Configuration) error) (api.Box, error) {
	box, err := rest.Box(r, e.Boxes)
	if err != nil {
		return api.Box{}, err
	}
	return e.Host.Configure(r.Context(), box.ID, change)
}

func (e *Endpoints) addLabel(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body labelBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	spec.Label(&p, "/label", body.Label)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	box, err := e.configure(r, func(c *api.Configuration) error {
		if slices.Contains(c.Labels, body.Label) {
			return api.Errorf(api.ErrConflict, "the box has the label %q already", body.Label)
		}
		if len(c.Labels) >= spec.MaxLabels {
			return problem.Invalid("/label", "the box has %d labels already, which is the limit; remove one", len(c.Labels))
		}
		c.Labels = append(c.Labels, body.Label)
		return nil
	})
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "label %s added", body.Label)
	return rest.Reply{Body: labelsView{"Label added", box.Labels}, Change: changed(box, "label_added", body.Label)}, nil
}

func (e *Endpoints) removeLabel(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	label := r.PathValue("label")
	box, err := e.configure(r, func(c *api.Configuration) error {
		return remove(&c.Labels, label, "label")
	})
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "label %s removed", label)
	return rest.Reply{Body: labelsView{"Label removed", emptied(box.Labels)}, Change: changed(box, "label_removed", label)}, nil
}

func (e *Endpoints) putMetadata(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body metadataBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if body.Metadata == nil {
		p.Add("/metadata", "is required; {} removes all entries")
	}
	spec.Metadata(&p, "/metadata", body.Metadata)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	box, err := e.configure(r, func(c *api.Configuration) error {
		c.Metadata = body.Metadata
		return nil
	})
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "metadata replaced")
	return rest.Reply{Body: body, Change: &rest.Change{Box: box.ID, What: map[string]any{"metadata": slices.Sorted(maps.Keys(body.Metadata))}}}, nil
}

func (e *Endpoints) putRunner(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body runnerBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	if body.CustomRunner == nil {
		p.Add("/custom_runner", "is required")
		return rest.Reply{}, p.Err()
	}
	spec.Runner(&p, "/custom_runner", body.CustomRunner)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	box, err := e.configure(r, func(c *api.Configuration) error {
		if c.Hosted.Agent != api.AgentCustom {
			return api.Errorf(api.ErrConflict, "only a box that was created with the agent %q has a custom harness", api.AgentCustom)
		}
		c.Hosted.CustomRunner = body.CustomRunner
		return nil
	})
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "custom harness replaced")
	return rest.Reply{Body: runnerView{"Custom runner updated", *body.CustomRunner}}, nil
}

func (e *Endpoints) addSkill(w http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	var body skillBody
	if err := e.Bodies.Decode(w, r, &body); err != nil {
		return rest.Reply{}, err
	}
	var p problem.List
	spec.Skill(&p, "/skill_id", body.SkillID)
	if err := p.Err(); err != nil {
		return rest.Reply{}, err
	}
	box, err := e.configure(r, func(c *api.Configuration) error {
		if slices.Contains(c.Hosted.Skills, body.SkillID) {
			return api.Errorf(api.ErrConflict, "the box has the skill %q already", body.SkillID)
		}
		if len(c.Hosted.Skills) >= spec.MaxSkills {
			return problem.Invalid("/skill_id", "the box has %d skills already, which is the limit; remove one", len(c.Hosted.Skills))
		}
		c.Hosted.Skills = append(c.Hosted.Skills, body.SkillID)
		return nil
	})
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "skill %s added", body.SkillID)
	return rest.Reply{Body: skillsView{"Skill added", box.Hosted.Skills}, Change: changed(box, "skill_added", body.SkillID)}, nil
}

func (e *Endpoints) removeSkill(_ http.ResponseWriter, r *http.Request) (rest.Reply, error) {
	skill := r.PathValue("owner") + "/" + r.PathValue("repository")
	if name := r.PathValue("skill"); name != "" {
		skill += "/" + name
	}
	box, err := e.configure(r, func(c *api.Configuration) error {
		c.Hosted.SkillsRemoved = true
		return remove(&c.Hosted.Skills, skill, "skill")
	})
	if err != nil {
		return rest.Reply{}, err
	}
	e.History.Log(box.ID, "info", "user", "skill %s removed", skill)
	return rest.Reply{Body: skillsView{"Skill removed", emptied(box.Hosted.Skills)}, Change: changed(box, "skill_removed", skill)}, nil
}

// changed describes a change for the audit trail.
func changed(box api.Box, what, name string) *rest.Change {
	return &rest.Change{Box: box.ID, What: map[string]any{what: name}}
}

// remove removes an entry of a list, or returns [api.ErrNotFound].
func remove(list *[]string, word, what string) error {
	i := slices.Index(*list, word)
	if i < 0 {
		return api.Errorf(api.ErrNotFound, "the box has no %s %q", what, problem.Clip(word))
	}
	*list = slices.Delete(*list, i, i+1)
	return nil
}

// emptied replaces a nil slice, so that it is encoded as an empty JSON array.
func emptied(list []string) []string {
	if list == nil {
		return []string{}
	}
	return list
}
