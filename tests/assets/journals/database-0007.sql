BEGIN TRANSACTION;
CREATE TABLE charges (
	job TEXT NOT NULL, 
	node TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	dollars DOUBLE NOT NULL, 
	from_at DOUBLE NOT NULL, 
	to_at DOUBLE NOT NULL, 
	PRIMARY KEY (job, node)
);
INSERT INTO "charges" VALUES('tuning','tuning-n1','spot','lost',1.75,1700000020.0,1700004000.0);
INSERT INTO "charges" VALUES('tuning','tuning-n2','on_demand','released',0.75,1700000011.0,1700003600.0);
CREATE TABLE duetune_schema (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT duetune_schema_pkc PRIMARY KEY (version_num)
);
INSERT INTO "duetune_schema" VALUES('0007');
CREATE TABLE fleet_nodes (
	fleet TEXT NOT NULL, 
	job TEXT NOT NULL, 
	node TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	open INTEGER NOT NULL, 
	body TEXT NOT NULL, 
	PRIMARY KEY (fleet, job, node)
);
INSERT INTO "fleet_nodes" VALUES('cluster','tuning','tuning-n1',1,0,'{"node":{"id":"tuning-n1","job":"tuning","kind":"spot","state":"lost","requested_at":1.0,"billed":2.5,"end":"capacity","reason":"capacity"},"gone":true}');
CREATE TABLE jobs (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	status TEXT NOT NULL, 
	reason TEXT NOT NULL, 
	policy TEXT NOT NULL, 
	model TEXT NOT NULL, 
	tags JSON NOT NULL, 
	submitted_at DOUBLE NOT NULL, 
	deadline_at DOUBLE NOT NULL, 
	budget DOUBLE, 
	step BIGINT NOT NULL, 
	total_steps BIGINT NOT NULL, 
	loss DOUBLE, 
	spot INTEGER NOT NULL, 
	on_demand INTEGER NOT NULL, 
	preemptions INTEGER NOT NULL, 
	spent DOUBLE NOT NULL, 
	cost DOUBLE, 
	value DOUBLE, 
	output TEXT NOT NULL, 
	finished_at DOUBLE, 
	ended_at DOUBLE, 
	learned_at DOUBLE, 
	updated_at DOUBLE NOT NULL, 
	events BIGINT NOT NULL, priority BIGINT DEFAULT '0' NOT NULL, project TEXT DEFAULT '' NOT NULL, share BIGINT, wish BIGINT, given_up JSON, fleet TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "jobs" VALUES('tuning','tuning','CANCELLED','cancelled','ahap','org/model','["team=nlp"]',1700000007.5,1700009000.0,55.5,12,30,1.75,0,0,1,2.5,2.5,0.5,'/jobs/tuning/output',1700004150.0,1700004200.0,1700004300.0,1700004300.0,13,0,'',NULL,NULL,NULL,'cluster');
CREATE TABLE journal (
	stream TEXT NOT NULL, 
	position BIGINT NOT NULL, 
	schema INTEGER NOT NULL, 
	tag TEXT NOT NULL, 
	body TEXT NOT NULL, 
	recorded_at DOUBLE NOT NULL, 
	PRIMARY KEY (stream, position)
);
INSERT INTO "journal" VALUES('tuning',1,1,'submitted','{"type":"submitted","at":1700000007.5,"spec":"{\"model\": \"org/model\", \"tags\": {\"team\": \"nlp\"}}","job":{"work":30.0,"deadline":10,"value":60.0,"throughput":[0.0,1.0,2.0,3.0,4.0,5.0,6.0],"min_gpus":1,"hard_deadline_factor":1.5,"value_shape":"linear","decay":0.1,"reconfiguration":{"grow":0.9,"shrink":0.95,"preempted":0.9,"key":"total"},"budget":40.0,"name":"tuning"},"task":{"folder":"/jobs/tuning","module":"duetune.training.worker","command":[],"environment":{"LANG":"C"},"coordinated":true},"policy":"ahap","origin":1700000000.0,"slot_s":1800.0,"chosen":"weight 0.8 of 112","max_price":2.5,"outlook":{"available":5.25,"spot_price":0.31},"stop_at":1700072000.0,"value_given":true,"steps":0,"deadline_at":null,"past":{"spot_price":[],"available":[]},"priority":0,"project":"","fleet":"cluster"}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',2,1,'observed','{"type":"observed","at":1700000009.0,"slot":1,"progress":0.0,"held":{"spot":0,"on_demand":0},"market":{"spot_price":0.3,"available":6,"on_demand_price":1.0},"forecast_price":[0.31,0.29],"forecast_available":[6,5],"spent":0.0,"outlook":{"available":5.25,"spot_price":0.31},"pace":{"1":1.5,"3":4.25},"share":null,"share_reason":"","wish":null}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',3,1,'decided','{"type":"decided","at":1700001800.0,"slot":1,"allocation":{"spot":1,"on_demand":1},"reason":"spot is cheap","memo":[0.1,1.0]}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',4,1,'requested','{"type":"requested","at":1700000010.0,"launches":[{"node":"tuning-n1","kind":"spot","epoch":1},{"node":"tuning-n2","kind":"on_demand","epoch":2}],"releases":[]}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',5,1,'requested','{"type":"requested","at":1700000012.0,"launches":[],"releases":["tuning-n2"]}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',6,1,'reported','{"type":"reported","at":1700003000.0,"nodes":[{"id":"tuning-n1","job":"tuning","kind":"spot","state":"running","requested_at":1700000010.0,"started_at":1700000020.0,"ended_at":null,"notice_at":null,"billed":0.125,"reason":"","end":null}],"progress":{"step":12,"total_steps":30,"world":3,"step_s":0.25,"tokens":49152,"loss":1.75,"eval_loss":1.875,"base_eval_loss":2.5,"checkpoint_step":10,"phase":"training","message":"joined","output":"","at":1700003000.0,"out_of_memory":false},"progress_at":1700002999.5}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',7,1,'wished','{"type":"wished","at":1700003100.0,"wish_id":1,"wish":{"type":"pause"}}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',8,1,'wished','{"type":"wished","at":1700003200.0,"wish_id":2,"wish":{"type":"resume"}}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',9,1,'wished','{"type":"wished","at":1700003300.0,"wish_id":3,"wish":{"type":"amend","deadline":1700009000.0,"budget":55.5}}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',10,1,'reported','{"type":"reported","at":1700004001.0,"nodes":[{"id":"tuning-n1","job":"tuning","kind":"spot","state":"lost","requested_at":1700000010.0,"started_at":1700000020.0,"ended_at":1700004000.0,"notice_at":1700003970.0,"billed":1.75,"reason":"taken by the market","end":"capacity"},{"id":"tuning-n2","job":"tuning","kind":"on_demand","state":"released","requested_at":1700000010.0,"started_at":1700000011.0,"ended_at":1700003600.0,"notice_at":null,"billed":0.75,"reason":"","end":null}],"progress":null,"progress_at":null}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',11,1,'wished','{"type":"wished","at":1700004100.0,"wish_id":4,"wish":{"type":"cancel"}}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',12,1,'ended','{"type":"ended","at":1700004200.0,"status":"CANCELLED","reason":"cancelled","cost":2.5,"value":0.5,"finished_at":1700004150.0,"output":"/jobs/tuning/output"}',1750000000.25);
INSERT INTO "journal" VALUES('tuning',13,1,'learned','{"type":"learned","at":1700004300.0,"pool":"a1b2","policies":["ahap","ahanp"],"utilities":[3.5,-1.0]}',1750000000.25);
CREATE TABLE measurements (
	"key" TEXT NOT NULL, 
	measured_at DOUBLE NOT NULL, 
	origin TEXT NOT NULL, 
	provenance TEXT NOT NULL, 
	model TEXT NOT NULL, 
	gpu_model TEXT NOT NULL, 
	method TEXT NOT NULL, 
	num_gpus INTEGER NOT NULL, 
	outcome TEXT NOT NULL, 
	configuration_key TEXT NOT NULL, 
	document TEXT NOT NULL, 
	PRIMARY KEY ("key")
);
INSERT INTO "measurements" VALUES('0c2ed0a59caf88f3',1750000100.5,'production','job tuning','org/model','A100-80GB','lora',3,'valid','02b484a3c33412ce','{"cluster":"","configuration":{"attention":"sdpa","batch_size":6,"fast_kernels":false,"fast_moe":0,"gpu_model":"A100-80GB","grad_accum":2,"grad_checkpoint":false,"interconnect":"tcp","lora_rank":16,"lora_targets":"all-linear","memory_cap_gb":0.0,"method":"lora","model":"org/model","num_gpus":3,"num_nodes":3,"optimiser":"adamw","precision":"bf16","sharding":"ddp","software":"torch 2.13.0","tokens_per_sample":1024},"error":"","flags":[],"gpu_utilisation":null,"measured_at":1750000100.5,"needed_memory_gb":null,"origin":"production","outcome":"valid","peak_memory_gb":null,"power_w":null,"protocol":"steps of 12 rows","provenance":"job tuning","runtime_s":null,"step_rows":12,"step_s":0.125,"steps":null,"tokens_per_s":49152.0,"weight":1.0}');
CREATE TABLE selector_states (
	pool TEXT NOT NULL, 
	version BIGINT NOT NULL, 
	job TEXT, 
	payload BLOB NOT NULL, 
	saved_at DOUBLE NOT NULL, 
	PRIMARY KEY (pool, version), 
	CONSTRAINT selector_states_once_per_job UNIQUE (pool, job)
);
INSERT INTO "selector_states" VALUES('a1b2',1,'tuning',X'5B332E352C2D312E305D',1750000000.25);
CREATE TABLE wishes (
	id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	job TEXT NOT NULL, 
	body TEXT NOT NULL, 
	asked_at DOUBLE NOT NULL, 
	taken_at DOUBLE
);
INSERT INTO "wishes" VALUES(1,'tuning','{"type":"pause"}',1750000000.25,1750000000.25);
INSERT INTO "wishes" VALUES(2,'tuning','{"type":"resume"}',1750000000.25,1750000000.25);
INSERT INTO "wishes" VALUES(3,'tuning','{"type":"amend","deadline":1700009000.0,"budget":55.5}',1750000000.25,1750000000.25);
INSERT INTO "wishes" VALUES(4,'tuning','{"type":"cancel"}',1750000000.25,1750000000.25);
CREATE INDEX wishes_by_job ON wishes (job);
CREATE INDEX jobs_by_submission ON jobs (submitted_at);
CREATE INDEX jobs_by_name ON jobs (name);
CREATE INDEX measurements_by_model ON measurements (model);
CREATE INDEX measurements_by_provenance ON measurements (provenance);
CREATE INDEX fleet_nodes_by_job ON fleet_nodes (fleet, job);
CREATE INDEX fleet_nodes_open ON fleet_nodes (fleet, open);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('wishes',4);
COMMIT;
