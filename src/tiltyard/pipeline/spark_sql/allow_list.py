"""What users' SQL may contain: functions, each group with its reason, and Spark's classes of nodes and expressions.

A function in neither list, as a new version of Spark may add it, is refused; a test compares both with the functions of
the running Spark. Table functions (`FROM range(3)`) are refused by their node in the plan.

Of nodes and expressions there are two lists each, by the simple names of Spark's classes: of the parsed plan, where
functions and tables are still names, and of the analyzed plan, where a name no longer hides what it refers to. Both are
of the pinned Spark version: what another version adds is refused until it was reviewed. Not listed on purpose:
commands, scripts, variables, EXECUTE IMMEDIATE, IDENTIFIER, parameters, time travel, table functions, recursion, and
users' code.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FunctionGroup:
    """Functions by their names in lower case, and the reason for their list."""

    reason: str
    names: frozenset[str]


def _group(reason: str, names: str) -> FunctionGroup:
    return FunctionGroup(reason, frozenset(names.split()))


ALLOWED: tuple[FunctionGroup, ...] = (
    _group(
        "They compare values.",
        """
        ! < <= <=> = == > >= and equal_null ilike in isnan isnotnull isnull like not or regexp regexp_like
        rlike
        """,
    ),
    _group(
        "They compute numbers from numbers; scales are bounded (see `size_limits`).",
        """
        % * + - / abs acos acosh asin asinh atan atan2 atanh bin bround cbrt ceil ceiling conv cos cosh cot
        csc degrees div e exp expm1 factorial floor greatest hex hypot least ln log log10 log1p log2 mod
        negative pi pmod positive pow power radians rand randn random rint round sec sign signum sin sinh
        sqrt tan tanh try_add try_divide try_mod try_multiply try_subtract unhex uniform width_bucket
        """,
    ),
    _group(
        "They compute with the bits of numbers.",
        "& << >> >>> ^ bit_count bit_get getbit shiftleft shiftright shiftrightunsigned | ~",
    ),
    _group(
        "They choose among their arguments.",
        "between coalesce if ifnull nanvl nullif nullifzero nvl nvl2 when zeroifnull",
    ),
    _group(
        "They cast values, as CAST does.",
        "bigint binary boolean cast date decimal double float int smallint string timestamp tinyint",
    ),
    _group(
        "They compute dates and times; windows may not slide (see `size_limits`).",
        """
        add_months convert_timezone curdate current_date current_timestamp current_timezone date_add
        date_diff date_format date_from_unix_date date_part date_sub date_trunc dateadd datediff datepart
        day dayname dayofmonth dayofweek dayofyear extract from_unixtime from_utc_timestamp hour last_day
        localtimestamp make_date make_dt_interval make_interval make_timestamp make_timestamp_ltz
        make_timestamp_ntz make_ym_interval minute month monthname months_between next_day now quarter
        second session_window time_bucket timestamp_micros timestamp_millis timestamp_nanos
        timestamp_seconds to_date to_timestamp to_timestamp_ltz to_timestamp_ntz to_unix_timestamp
        to_utc_timestamp trunc try_make_interval try_make_timestamp try_make_timestamp_ltz
        try_make_timestamp_ntz try_to_date try_to_timestamp unix_date unix_micros unix_millis unix_nanos
        unix_seconds unix_timestamp weekday weekofyear window window_time year
        """,
    ),
    _group(
        "They make text from text; those that can make long text are bounded (see `size_limits`).",
        """
        ascii base64 bit_length btrim char char_length character_length chr collate collation concat_ws
        contains decode elt encode endswith find_in_set format_number format_string from_base32 initcap
        instr is_valid_utf8 jaro_winkler_similarity lcase left len length levenshtein locate lower lpad
        ltrim luhn_check make_valid_utf8 mask octet_length overlay position printf quote randstr
        regexp_count regexp_extract regexp_extract_all regexp_instr regexp_replace regexp_substr repeat
        replace right rpad rtrim sentences soundex space split split_part startswith substr substring
        substring_index to_base32 to_binary to_char to_number to_varchar translate trim try_to_binary
        try_to_number try_validate_utf8 ucase unbase64 upper validate_utf8
        """,
    ),
    _group(
        "They parse URLs as text, without a request over the network.",
        "parse_url try_parse_url try_url_decode url_decode url_encode",
    ),
    _group(
        "They compute digests.",
        "crc32 hash md5 sha sha1 sha2 xxhash64",
    ),
    _group(
        "They make arrays from arrays; those that can make long ones are bounded (see `size_limits`).",
        """
        array array_append array_compact array_contains array_distinct array_except array_insert
        array_intersect array_join array_max array_min array_position array_prepend array_remove
        array_repeat array_size array_union arrays_overlap arrays_zip flatten get sequence shuffle slice
        sort_array
        """,
    ),
    _group(
        "They make maps from maps and arrays.",
        """
        map map_concat map_contains_key map_entries map_from_arrays map_from_entries map_keys map_values
        str_to_map
        """,
    ),
    _group(
        "They put values into structs.",
        "named_struct struct",
    ),
    _group(
        "They read elements and sizes of arrays, maps and text.",
        "cardinality concat element_at reverse size try_element_at",
    ),
    _group(
        "They apply an expression of the query to elements.",
        """
        aggregate array_sort exists filter forall map_filter map_zip_with reduce transform transform_keys
        transform_values zip_with
        """,
    ),
    _group(
        "They read and write JSON in memory; options, and schemas beyond plain types, are refused (see `size_limits`).",
        "from_json get_json_object json_array_length json_object_keys json_tuple schema_of_json to_json",
    ),
    _group(
        "They read and write a line of CSV in memory, under the same rules.",
        "from_csv schema_of_csv to_csv",
    ),
    _group(
        "They read and write variants in memory.",
        """
        is_valid_variant is_variant_null parse_json schema_of_variant schema_of_variant_agg
        to_variant_object try_parse_json try_variant_array_append try_variant_get variant_array_append
        variant_delete variant_get variant_strip_nulls
        """,
    ),
    _group(
        "They compute with arrays of numbers.",
        """
        vector_avg vector_cosine_similarity vector_inner_product vector_l2_distance vector_norm
        vector_normalize vector_sum
        """,
    ),
    _group(
        "They make rows from existing arrays and maps.",
        "explode explode_outer inline inline_outer posexplode posexplode_outer stack",
    ),
    _group(
        "They aggregate rows, within the memory of the driver and executors.",
        """
        any any_value approx_count_distinct approx_percentile approx_top_k array_agg avg bit_and bit_or
        bit_xor bitmap_and_agg bitmap_construct_agg bitmap_or_agg bool_and bool_or collect_list collect_set
        collect_union corr count count_if covar_pop covar_samp every first first_value grouping grouping_id
        histogram_numeric kurtosis last last_value listagg max max_by mean median min min_by mode percentile
        percentile_approx percentile_cont percentile_disc regr_avgx regr_avgy regr_count regr_intercept
        regr_r2 regr_slope regr_sxx regr_sxy regr_syy skewness some std stddev stddev_pop stddev_samp
        string_agg sum try_avg try_sum var_pop var_samp variance
        """,
    ),
    _group(
        "They number the rows of a window, and read neighbouring ones.",
        "counter_diff cume_dist dense_rank lag lead nth_value ntile percent_rank rank row_number",
    ),
    _group(
        "They encrypt and decrypt with a given key, number rows, or fail on demand.",
        """
        aes_decrypt aes_encrypt assert_true bitmap_bit_position bitmap_bucket_number bitmap_count hmac
        monotonically_increasing_id raise_error spark_partition_id try_aes_decrypt typeof uuid
        """,
    ),
)
"""What a query may call."""

REFUSED: tuple[FunctionGroup, ...] = (
    _group(
        "It calls methods of the JVM that runs it: code of the caller's choice.",
        "java_method reflect try_reflect",
    ),
    _group(
        "It reads descriptor files of the machine that runs it, or requests schemas from a registry.",
        "from_avro from_protobuf schema_of_avro to_avro to_protobuf",
    ),
    _group(
        "XML refers to entities and schemas by file and URL, and the parser reads them.",
        """
        from_xml schema_of_xml to_xml xpath xpath_boolean xpath_double xpath_float xpath_int xpath_long
        xpath_number xpath_short xpath_string
        """,
    ),
    _group(
        "It reveals facts of the worker, not of the tables: its account, catalog, files, version.",
        """
        current_catalog current_database current_path current_schema current_user input_file_block_length
        input_file_block_start input_file_name session_user user version
        """,
    ),
    _group(
        "Sketches set the memory that they take in an argument or in bytes, which a library reads unchecked.",
        """
        approx_top_k_accumulate approx_top_k_combine approx_top_k_estimate count_min_sketch hll_sketch_agg
        hll_sketch_estimate hll_union hll_union_agg kll_merge_agg_bigint kll_merge_agg_double
        kll_merge_agg_float kll_sketch_agg_bigint kll_sketch_agg_double kll_sketch_agg_float
        kll_sketch_get_n_bigint kll_sketch_get_n_double kll_sketch_get_n_float
        kll_sketch_get_quantile_bigint kll_sketch_get_quantile_double kll_sketch_get_quantile_float
        kll_sketch_get_rank_bigint kll_sketch_get_rank_double kll_sketch_get_rank_float
        kll_sketch_merge_bigint kll_sketch_merge_double kll_sketch_merge_float kll_sketch_to_string_bigint
        kll_sketch_to_string_double kll_sketch_to_string_float theta_difference theta_intersection
        theta_intersection_agg theta_sketch_agg theta_sketch_estimate theta_union theta_union_agg
        tuple_difference_double tuple_difference_integer tuple_difference_theta_double
        tuple_difference_theta_integer tuple_intersection_agg_double tuple_intersection_agg_integer
        tuple_intersection_double tuple_intersection_integer tuple_intersection_theta_double
        tuple_intersection_theta_integer tuple_sketch_agg_double tuple_sketch_agg_integer
        tuple_sketch_estimate_double tuple_sketch_estimate_integer tuple_sketch_summary_double
        tuple_sketch_summary_integer tuple_sketch_theta_double tuple_sketch_theta_integer
        tuple_union_agg_double tuple_union_agg_integer tuple_union_double tuple_union_integer
        tuple_union_theta_double tuple_union_theta_integer
        """,
    ),
    _group(
        "It creates missing paths of a variant, up to the index in the path.",
        "try_variant_insert try_variant_set variant_insert variant_set",
    ),
    _group(
        "It is for types and views that tables of Lance do not have: geometries, metric views.",
        "measure st_asbinary st_geogfromwkb st_geomfromwkb st_setsrid st_srid",
    ),
    _group(
        "It is for the type TIME, which is off in Spark.",
        """
        current_time localtime make_time time time_diff time_from_micros time_from_millis time_from_seconds
        time_to_micros time_to_millis time_to_seconds time_trunc to_time try_to_time
        """,
    ),
)
"""Functions that users' SQL may not call."""

ALLOWED_NAMES = frozenset().union(*(group.names for group in ALLOWED))
REFUSED_REASONS = {name: group.reason for group in REFUSED for name in group.names}


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


PARSED_NODES = _names(
    """
    Aggregate AsOfJoin Distinct Except Filter Generate GlobalLimit Intersect Join LateralJoin LocalLimit
    LocalRelation Offset OneRowRelation PipeOperator Pivot Project RepartitionByExpression Sample Sort SubqueryAlias
    Union Unpivot UnresolvedHaving UnresolvedHint UnresolvedInlineTable UnresolvedQualify UnresolvedRelation
    UnresolvedSubqueryColumnAliases UnresolvedWith WithWindowDefinition
    """
)
"""Nodes of a parsed query that only reads its tables."""

ANALYZED_NODES = _names(
    """
    Aggregate AsOfJoin CTERelationDef CTERelationRef Distinct Except Expand Filter Generate GlobalLimit Intersect
    Join LateralJoin LocalLimit LocalRelation MapInArrow Offset OneRowRelation PipeOperator Project Repartition
    RepartitionByExpression ResolvedHint Sample Sort SubqueryAlias Union View Window WithCTE
    """
)
"""Nodes of the analyzed query. `MapInArrow` is a table's rows: nothing below it belongs to the query."""

PARSED_EXPRESSIONS = _names(
    """
    Add AggregateExpression Alias And AnyValue AtLeastNNonNulls AttributeReference Between BitwiseAnd BitwiseNot
    BitwiseOr BitwiseXor CaseWhen Cast Coalesce Collate Concat CreateNamedStruct Cube CurrentRow$ Divide
    EqualNullSafe EqualTo Exists First GreaterThan GreaterThanOrEqual GroupingSets ILike In InSubquery
    IntegralDivide IsNotNull IsNotUnknown IsNull IsUnknown LambdaFunction Last LateralSubquery LessThan
    LessThanOrEqual Like LikeAll LikeAny ListQuery Literal Lower MultiAlias Multiply NamedArgumentExpression Not
    NotLikeAll NotLikeAny Or Overlay PipeExpression RLike Remainder Rollup ScalarSubquery SemiStructuredExtract
    ShiftLeft ShiftRight ShiftRightUnsigned SortOrder SpecifiedWindowFrame StringLocate StringTrim StringTrimBoth
    StringTrimLeft StringTrimRight Substring Subtract TimestampAdd TimestampDiff UnaryMinus UnaryPositive
    UnboundedFollowing$ UnboundedPreceding$ UnresolvedAlias UnresolvedAttribute UnresolvedCollation
    UnresolvedExtractValue UnresolvedFunction UnresolvedGenerator UnresolvedNamedLambdaVariable UnresolvedOrdinal
    UnresolvedPipeAggregateOrdinal UnresolvedRegex UnresolvedStar UnresolvedStarExceptOrReplace
    UnresolvedStarWithColumns UnresolvedStarWithColumnsRenames UnresolvedWindowExpression UnresolvedWithinGroup
    UnspecifiedFrame$ WindowExpression WindowSpecDefinition WindowSpecReference
    """
)
"""Expressions of a parsed query; functions are among them as `UnresolvedFunction`, looked up by name."""

ANALYZED_EXPRESSIONS = _names(
    """
    Abs Acos Acosh Add AddMonths AesDecrypt AesEncrypt AggregateExpression Alias And AnyValue ApproxTopK
    ApproximatePercentile ArrayAggregate ArrayAppend ArrayCompact ArrayContains ArrayDistinct ArrayExcept
    ArrayExists ArrayFilter ArrayForAll ArrayInsert ArrayIntersect ArrayJoin ArrayMax ArrayMin ArrayPosition
    ArrayPrepend ArrayRemove ArrayRepeat ArraySize ArraySort ArrayTransform ArrayUnion ArraysOverlap ArraysZip Ascii
    Asin Asinh AssertTrue AtLeastNNonNulls Atan Atan2 Atanh AttributeReference Average BRound Base32 Base64 Between
    Bin BinaryPad BinaryPredicate BitAndAgg BitLength BitOrAgg BitXorAgg BitmapAndAgg BitmapBitPosition
    BitmapBucketNumber BitmapConstructAgg BitmapCount BitmapOrAgg BitwiseAnd BitwiseCount BitwiseGet BitwiseNot
    BitwiseOr BitwiseXor BoolAnd BoolOr CaseWhen Cast Cbrt Ceil CheckOverflow CheckOverflowInSum Chr Coalesce
    Collate Collation CollationKey CollectList CollectSet CollectUnion CommonExpressionDef CommonExpressionRef
    Concat ConcatWs Contains Conv ConvertTimezone Corr Cos Cosh Cot Count CountIf CounterDiff
    CounterDiffWithStartTime CovPopulation CovSample Crc32 CreateArray CreateMap CreateNamedStruct Csc CsvToStructs
    CumeDist CurrentDate CurrentRow$ CurrentTime CurrentTimeZone CurrentTimestamp CurrentTimestampNanos DateAdd
    DateAddInterval DateAddYMInterval DateDiff DateFormatClass DateFromUnixDate DatePart DateSub DatetimeSub DayName
    DayOfMonth DayOfWeek DayOfYear Decode DenseRank Divide DivideDTInterval DivideInterval DivideYMInterval
    ElementAt Elt Encode EndsWith EqualNull EqualNullSafe EqualTo EulerNumber Exists Exp Explode Expm1 Extract
    ExtractANSIIntervalDays ExtractANSIIntervalHours ExtractANSIIntervalMinutes ExtractANSIIntervalMonths
    ExtractANSIIntervalSeconds ExtractANSIIntervalYears ExtractIntervalDays ExtractIntervalHours
    ExtractIntervalMinutes ExtractIntervalMonths ExtractIntervalSeconds ExtractIntervalYears Factorial FindInSet
    First Flatten Floor FormatNumber FormatString FromUTCTimestamp FromUnixTime GeneratorOuter Get GetArrayItem
    GetArrayStructFields GetJsonObject GetMapValue GetStructField GetTimestamp GreaterThan GreaterThanOrEqual
    Greatest Grouping GroupingID Hex HistogramNumeric Hmac Hour HoursOfTime HyperLogLogPlusPlus Hypot ILike If In
    InSet InSubquery InitCap Inline IntegralDivide IntervalDivide IsNaN IsNotNull IsNotUnknown IsNull IsUnknown
    IsValidUTF8 IsValidVariant IsVariantNull JaroWinkler JsonObjectKeys JsonToStructs JsonTuple
    KnownFloatingPointNormalized KnownNotNull KnownNullable Kurtosis Lag LambdaFunction Last LastDay
    LateralColumnAliasReference LateralSubquery Lead Least Left Length LengthOfJsonArray LessThan LessThanOrEqual
    Levenshtein Like LikeAll LikeAny ListAgg ListQuery Literal LocalTimestamp LocalTimestampNanos Log Log10 Log1p
    Log2 Logarithm Lower Luhncheck MakeDTInterval MakeDate MakeDecimal MakeInterval MakeTimestamp
    MakeTimestampFromDateTime MakeTimestampLTZ MakeTimestampLTZNanos MakeTimestampNTZ MakeTimestampNTZNanos
    MakeValidUTF8 MakeYMInterval MapConcat MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys
    MapSort MapValues MapZipWith Mask Max MaxBy MaxMinByK Md5 Median MicrosToTimestamp MillisToTimestamp Min MinBy
    Minute MinutesOfTime Mode MonotonicallyIncreasingID Month MonthName MonthsBetween MultiAlias Multiply
    MultiplyDTInterval MultiplyInterval MultiplyYMInterval Murmur3Hash NTile NaNvl NamedLambdaVariable
    NanosTimestampCast NanosToTimestamp NextDay Not NotLikeAll NotLikeAny Now NthValue NullIf NullIfResult
    NullIfZero Nvl Nvl2 OctetLength Or OuterReference Overlay ParseJson ParseToDate ParseToTimestamp ParseUrl
    PercentRank Percentile PercentileCont PercentileDisc Pi PivotFirst Pmod PosExplode Pow
    PreciseTimestampConversion Quarter Quote RLike RaiseError Rand RandStr Randn Rank RegExpCount RegExpExtract
    RegExpExtractAll RegExpInStr RegExpReplace RegExpSubStr RegrAvgX RegrAvgY RegrCount RegrIntercept RegrR2 RegrSXX
    RegrSXY RegrSYY RegrSlope Remainder ReplicateRows ResolvedCollation Reverse Right Rint Round RoundCeil
    RoundFloor RowNumber ScalarSubquery SchemaOfCsv SchemaOfJson SchemaOfVariant SchemaOfVariantAgg Sec Second
    SecondWithFraction SecondWithFractionNanos SecondsOfTime SecondsOfTimeWithFraction SecondsToTimestamp Sentences
    Sequence Sha1 Sha2 ShiftLeft ShiftRight ShiftRightUnsigned Shuffle Signum Sin Sinh Size Skewness Slice SortArray
    SortOrder SoundEx SparkPartitionID SpecifiedWindowFrame SplitPart Sqrt Stack StartsWith StddevPop StddevSamp
    StringDecode StringInstr StringInstrWithOccurrence StringLPad StringLocate StringRPad StringRepeat StringReplace
    StringSpace StringSplit StringSplitSQL StringToMap StringTranslate StringTrim StringTrimBoth StringTrimLeft
    StringTrimRight StructsToCsv StructsToJson Substring SubstringIndex Subtract SubtractDates SubtractTimes
    SubtractTimestamps Sum Tan Tanh TimeAddInterval TimeBucket TimestampAdd TimestampAddInterval
    TimestampAddYMInterval TimestampDiff ToBinary ToCharacter ToDegrees ToNumber ToRadians ToTimestamp
    ToUTCTimestamp ToUnixTimestamp ToVariantObject TransformKeys TransformValues TruncDate TruncInstant
    TruncTimestamp TryAdd TryAesDecrypt TryDivide TryElementAt TryEval TryMakeInterval TryMakeTimestamp
    TryMakeTimestampFromDateTime TryMod TryMultiply TryParseUrl TrySubtract TryToBinary TryToNumber TryUrlDecode
    TryValidateUTF8 TypeOf UnBase32 UnBase64 UnaryMinus UnaryPositive UnboundedFollowing$ UnboundedPreceding$ Unhex
    Uniform UnixDate UnixMicros UnixMillis UnixNanos UnixSeconds UnixTime UnixTimestamp UnscaledValue
    UnspecifiedFrame$ UpCast Upper UrlDecode UrlEncode Uuid ValidateUTF8 VariancePop VarianceSamp VariantArrayAppend
    VariantDelete VariantGet VariantStripNulls VectorAvg VectorCosineSimilarity VectorInnerProduct VectorL2Distance
    VectorNorm VectorNormalize VectorSum WeekDay WeekOfYear WidthBucket WindowExpression WindowSpecDefinition
    WindowTime With XXH64 XxHash64 Year YearOfWeek ZeroIfNull ZipWith
    """
)
"""Expressions of the operators and the allowed functions."""
