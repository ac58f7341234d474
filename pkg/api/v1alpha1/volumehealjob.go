package v1alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Mode says what a job may do.
//
// +kubebuilder:validation:Enum=Check;Heal;Evict
type Mode string

// The modes of a job.
const (
	// ModeCheck changes nothing.
	ModeCheck Mode = "Check"
	// ModeHeal also heals where that is safe.
	ModeHeal Mode = "Heal"
	// ModeEvict evicts the pods of the node that use the volume, so that its driver stages
	// it anew, where the cluster's settings allow it.
	ModeEvict Mode = "Evict"
)

// Result says how a job ended.
type Result string

// The results of a job.
const (
	// ResultSucceeded: after Heal every node found the volume to work. After Check
	// every node answered: whether the volume works is in status.abnormal.
	ResultSucceeded Result = "Succeeded"
	// ResultFailed: the volume is still abnormal after Heal, or a node did not answer.
	ResultFailed Result = "Failed"
)

// The condition types of a job. One of Complete and Failed is true when it has ended.
const (
	// ConditionProgressing is true while the job runs; its reason says what it waits for.
	ConditionProgressing = "Progressing"
	// ConditionComplete is true when the job succeeded.
	ConditionComplete = "Complete"
	// ConditionFailed is true when the job failed; its reason says why.
	ConditionFailed = "Failed"
)

// TargetSpec names what is checked or healed.
type TargetSpec struct {
	// PersistentVolumeClaim is the name of a claim in the job's namespace.
	//
	// +kubebuilder:validation:MinLength=1
	// +kubebuilder:validation:MaxLength=253
	PersistentVolumeClaim string `json:"persistentVolumeClaim"`
}

// VolumeHealJobSpec says what to do. It cannot be changed.
type VolumeHealJobSpec struct {
	// Target names the volume.
	Target TargetSpec `json:"target"`

	// Mode: Check changes nothing; Heal also heals where that is safe; Evict evicts the
	// pods that use the volume, where only a new stage helps and the cluster's settings
	// allow it.
	//
	// +kubebuilder:default=Heal
	// +optional
	Mode Mode `json:"mode,omitempty"`

	// DryRun has a job in mode Evict only say which pods would be evicted, or why not.
	//
	// +optional
	DryRun bool `json:"dryRun,omitempty"`

	// BackoffLimit is how many times a node is tried again.
	//
	// +kubebuilder:default=6
	// +kubebuilder:validation:Minimum=0
	// +kubebuilder:validation:Maximum=60
	// +optional
	BackoffLimit *int32 `json:"backoffLimit,omitempty"`

	// RetryDeadlineSeconds is the time in seconds after the job's start from which no
	// node is tried again.
	//
	// +kubebuilder:default=600
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=86400
	// +optional
	RetryDeadlineSeconds *int64 `json:"retryDeadlineSeconds,omitempty"`

	// TimeoutSeconds bounds one call in seconds. The default is longer than a node works
	// on one volume by default (node-healer's --heal-timeout).
	//
	// +kubebuilder:default=180
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=3900
	// +optional
	TimeoutSeconds *int64 `json:"timeoutSeconds,omitempty"`

	// TTLSecondsAfterFinished is the time in seconds after which a job that has ended is
	// deleted; absent: never.
	//
	// +kubebuilder:validation:Minimum=0
	// +optional
	TTLSecondsAfterFinished *int32 `json:"ttlSecondsAfterFinished,omitempty"`
}

// NodeStatus is what one node said last.
type NodeStatus struct {
	// Node is the node's name.
	//
	// +kubebuilder:validation:MaxLength=253
	Node string `json:"node"`

	// Abnormal is whether the volume does not work there; absent: not known.
	//
	// +optional
	Abnormal *bool `json:"abnormal,omitempty"`

	// Message is the node's, or says why there is no answer.
	//
	// +kubebuilder:validation:MaxLength=1024
	// +optional
	Message string `json:"message,omitempty"`

	// Reason is why the node is tried again or was given up, in one word.
	//
	// +kubebuilder:validation:MaxLength=128
	// +optional
	Reason string `json:"reason,omitempty"`

	// Code is the gRPC code of the last call; empty before a call got to the node.
	//
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Code string `json:"code,omitempty"`

	// Tier says whether another try may help (transient, retriable, terminal); empty
	// when none is needed.
	//
	// +kubebuilder:validation:MaxLength=32
	// +optional
	Tier string `json:"tier,omitempty"`

	// Tries is how many times the node was tried.
	Tries int32 `json:"tries"`

	// LastTryTime is when the last try ended.
	//
	// +optional
	LastTryTime *metav1.Time `json:"lastTryTime,omitempty"`

	// NextTryTime is when the node is tried again; absent: it is not, unless it was not
	// tried yet.
	//
	// +optional
	NextTryTime *metav1.Time `json:"nextTryTime,omitempty"`
}

// VolumeHealJobStatus is written by the controller.
type VolumeHealJobStatus struct {
	// Conditions are Progressing, Complete and Failed.
	//
	// +listType=map
	// +listMapKey=type
	// +optional
	Conditions []metav1.Condition `json:"conditions,omitempty"`

	// Result is Succeeded or Failed when the job has ended.
	//
	// +optional
	Result Result `json:"result,omitempty"`

	// Abnormal is whether a node said that the volume does not work; absent: not known.
	//
	// +optional
	Abnormal *bool `json:"abnormal,omitempty"`

	// StartTime is when the controller took the job up.
	//
	// +optional
	StartTime *metav1.Time `json:"startTime,omitempty"`

	// CompletionTime is when it ended, with either result.
	//
	// +optional
	CompletionTime *metav1.Time `json:"completionTime,omitempty"`

	// Moved is true once the job has followed the volume's pods to other nodes.
	//
	// +optional
	Moved bool `json:"moved,omitempty"`

	// Answered is how many nodes need no other try, of all: "1/2".
	//
	// +optional
	Answered string `json:"answered,omitempty"`

	// Nodes has one entry for each node on which running pods use the volume.
	//
	// +listType=map
	// +listMapKey=node
	// +kubebuilder:validation:MaxItems=1000
	// +optional
	Nodes []NodeStatus `json:"nodes,omitempty"`

	// SickSince is when a job in mode Evict first saw what it may evict pods for.
	//
	// +optional
	SickSince *metav1.Time `json:"sickSince,omitempty"`
}

// VolumeHealJob has the volume of a claim checked or healed, on all nodes where
// running pods use it.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:shortName=vhj
// +kubebuilder:subresource:status
// +kubebuilder:printcolumn:name="Claim",type=string,JSONPath=`.spec.target.persistentVolumeClaim`
// +kubebuilder:printcolumn:name="Mode",type=string,JSONPath=`.spec.mode`
// +kubebuilder:printcolumn:name="Result",type=string,JSONPath=`.status.result`
// +kubebuilder:printcolumn:name="Abnormal",type=boolean,JSONPath=`.status.abnormal`
// +kubebuilder:printcolumn:name="Nodes",type=string,JSONPath=`.status.answered`
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=`.metadata.creationTimestamp`
type VolumeHealJob struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata,omitempty"`

	// Spec cannot be changed: create another job.
	//
	// +kubebuilder:validation:XValidation:rule="self == oldSelf",message="the spec cannot be changed: create another job"
	// +kubebuilder:validation:XValidation:rule="!has(self.dryRun) || !self.dryRun || self.mode == 'Evict'",message="dryRun is for mode Evict only"
	Spec VolumeHealJobSpec `json:"spec"`

	// +optional
	Status VolumeHealJobStatus `json:"status,omitempty"`
}

// VolumeHealJobList is a list of jobs.
//
// +kubebuilder:object:root=true
type VolumeHealJobList struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ListMeta `json:"metadata,omitempty"`

	Items []VolumeHealJob `json:"items"`
}
