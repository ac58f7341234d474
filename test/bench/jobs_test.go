package bench

// jobs is everything that agents do.
var jobs = map[string]job{
	"lay out":    does(layOutMounts),
	"latency":    does(measureLatency),
	"facts":      does(measureFacts),
	"list":       does(measureList),
	"sweep":      does(sweepAll),
	"findmnt":    does(findmntAll),
	"background": does(callAll),
	"steady":     does(callSteadily),
}
