package models

import "strings"

// place is a service that serves Chat Completions of others in a form of its own, by the paths that its clients use.
type place uint8

const (
	elsewhere  place = iota
	openRouter       // https://openrouter.ai/docs/api-reference: /api/v1; comments while it waits, the provider and usage.cost
	azure            // https://learn.microsoft.com/azure/ai-services/openai/reference: the path has the model; filter results first
)

// placeOf returns the service of a path, and the model in it; "": the body has it.
func placeOf(path string) (at place, model string) {
	if strings.HasPrefix(path, "/api/v1/") {
		return openRouter, ""
	}
	if _, rest, ok := strings.Cut(path, "/openai/deployments/"); ok {
		model, _, _ = strings.Cut(rest, "/")
		return azure, model
	}
	if _, rest, ok := strings.Cut(path, "/model/"); ok {
		return elsewhere, rest[:max(0, strings.LastIndexByte(rest, '/'))]
	}
	return elsewhere, ""
}

// decorate adds the members of a service to an answer, or to the last chunk of one.
func (at place) decorate(o object) object {
	usage, whole := o["usage"].(object)
	switch at {
	case openRouter:
		o["provider"], o["system_fingerprint"] = "Testnet", nil
		if whole {
			usage["cost"], usage["is_byok"] = 0.00125, false
			usage["cost_details"] = object{"upstream_inference_cost": 0.0011, "upstream_inference_prompt_cost": 0.0007}
		}
	case azure:
		o["prompt_filter_results"] = []object{{"prompt_index": 0, "content_filter_results": object{"hate": object{"filtered": false, "severity": "safe"}}}}
	}
	return o
}

// begin sends what a service sends before the first chunk of a stream.
func (at place) begin(e *events) {
	switch at {
	case openRouter:
		e.comment("OPENROUTER PROCESSING")
	case azure:
		e.send("", azure.decorate(object{"id": "", "object": "", "created": 0, "model": "", "choices": []object{}}))
	}
}
