package kube

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
)

// CreateTokenReview implements Reviews.
func (c *Client) CreateTokenReview(ctx context.Context, r *authenticationv1.TokenReview) (*authenticationv1.TokenReview, error) {
	answer := r.DeepCopy()
	what := request{Group: authenticationv1.GroupName, Resource: "tokenreviews"}
	return answer, c.create(ctx, what, answer)
}

// CreateSubjectAccessReview implements Reviews.
func (c *Client) CreateSubjectAccessReview(ctx context.Context, r *authorizationv1.SubjectAccessReview) (*authorizationv1.SubjectAccessReview, error) {
	answer := r.DeepCopy()
	what := request{Group: authorizationv1.GroupName, Resource: "subjectaccessreviews"}
	return answer, c.create(ctx, what, answer)
}
