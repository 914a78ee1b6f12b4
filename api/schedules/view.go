package schedules

import (
	"boxgate/api"
	"boxgate/policy"
)

// scheduleView is a schedule in the SDK's format. Times are Unix seconds.
type scheduleView struct {
	ID             string            `json:"id"`
	BoxID          policy.BoxID      `json:"box_id"`
	CustomerID     string            `json:"customer_id"`
	Type           string            `json:"type" enum:"exec prompt"`
	Cron           string            `json:"cron"`
	TimeZone       string            `json:"time_zone,omitempty"`
	Command        []string          `json:"command,omitempty"`
	Prompt         string            `json:"prompt,omitempty"`
	Folder         string            `json:"folder"`
	Model          string            `json:"model,omitempty"`
	AgentOptions   options           `json:"agent_options,omitzero"`
	Timeout        int64             `json:"timeout,omitempty" doc:"milliseconds"`
	Status         string            `json:"status" enum:"active paused"`
	WebhookURL     string            `json:"webhook_url,omitempty"`
	WebhookHeaders map[string]string `json:"webhook_headers,omitempty"`
	NextRunAt      int64             `json:"next_run_at,omitempty"`
	LastRunAt      int64             `json:"last_run_at,omitempty"`
	LastRunStatus  string            `json:"last_run_status,omitempty" doc:"completed, failed or skipped"`
	LastRunID      string            `json:"last_run_id,omitempty"`
	LastError      string            `json:"last_error,omitempty" doc:"why the last run failed, unless the command itself failed"`
	TotalRuns      int64             `json:"total_runs"`
	TotalFailures  int64             `json:"total_failures"`
	CreatedAt      int64             `json:"created_at"`
	UpdatedAt      int64             `json:"updated_at"`
}

func viewSchedule(s Schedule) scheduleView {
	v := scheduleView{
		ID: s.ID, BoxID: s.Box, CustomerID: api.CustomerID, Type: s.Type, Cron: s.Cron, TimeZone: s.TimeZone, Command: s.Command,
		Prompt: s.Prompt, Folder: s.Folder, Model: s.Model, AgentOptions: options{s.AgentOptions}, Timeout: s.Timeout.Milliseconds(),
		Status: "active", WebhookURL: s.WebhookURL, WebhookHeaders: s.WebhookHeaders,
		NextRunAt: max(s.NextRunAt.Unix(), 0), LastRunAt: max(s.LastRunAt.Unix(), 0), LastRunStatus: s.LastRunStatus, LastRunID: s.LastRunID,
		LastError: s.LastError, TotalRuns: s.Runs, TotalFailures: s.Failures, CreatedAt: s.CreatedAt.Unix(), UpdatedAt: s.UpdatedAt.Unix(),
	}
	if s.Paused {
		v.Status = "paused"
	}
	return v
}
