"""Plan nodes and expression classes that users' SQL may contain, by the simple names of Spark's classes.

Two lists each: of the parsed plan, where functions and tables are still names, and of the analyzed plan, where a name
no longer hides what it refers to. Both are of the pinned Spark version: what another version adds is refused until it
was reviewed. Not listed on purpose: commands, scripts, variables, EXECUTE IMMEDIATE, IDENTIFIER, parameters, time
travel, table functions, recursion, and users' code.
"""

from __future__ import annotations


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
    Greatest Grouping GroupingID Hex HistogramNumeric Hmac Hour HyperLogLogPlusPlus Hypot ILike If In InSet
    InSubquery InitCap Inline IntegralDivide IntervalDivide IsNaN IsNotNull IsNotUnknown IsNull IsUnknown
    IsValidUTF8 IsValidVariant IsVariantNull JaroWinkler JsonObjectKeys JsonToStructs JsonTuple
    KnownFloatingPointNormalized KnownNotNull KnownNullable Kurtosis Lag LambdaFunction Last LastDay
    LateralColumnAliasReference LateralSubquery Lead Least Left Length LengthOfJsonArray LessThan LessThanOrEqual
    Levenshtein Like LikeAll LikeAny ListAgg ListQuery Literal LocalTimestamp LocalTimestampNanos Log Log10 Log1p
    Log2 Logarithm Lower Luhncheck MakeDTInterval MakeDate MakeDecimal MakeInterval MakeTimestamp
    MakeTimestampFromDateTime MakeTimestampLTZ MakeTimestampLTZNanos MakeTimestampNTZ MakeTimestampNTZNanos
    MakeValidUTF8 MakeYMInterval MapConcat MapContainsKey MapEntries MapFilter MapFromArrays MapFromEntries MapKeys
    MapSort MapValues MapZipWith Mask Max MaxBy MaxMinByK Md5 Median MicrosToTimestamp MillisToTimestamp Min MinBy
    Minute Mode MonotonicallyIncreasingID Month MonthName MonthsBetween MultiAlias Multiply MultiplyDTInterval
    MultiplyInterval MultiplyYMInterval Murmur3Hash NTile NaNvl NamedLambdaVariable NanosTimestampCast
    NanosToTimestamp NextDay Not NotLikeAll NotLikeAny Now NthValue NullIf NullIfResult NullIfZero Nvl Nvl2
    OctetLength Or OuterReference Overlay ParseJson ParseToDate ParseToTimestamp ParseUrl PercentRank Percentile
    PercentileCont PercentileDisc Pi PivotFirst Pmod PosExplode Pow PreciseTimestampConversion Quarter Quote RLike
    RaiseError Rand RandStr Randn Rank RegExpCount RegExpExtract RegExpExtractAll RegExpInStr RegExpReplace
    RegExpSubStr RegrAvgX RegrAvgY RegrCount RegrIntercept RegrR2 RegrSXX RegrSXY RegrSYY RegrSlope Remainder
    ReplicateRows ResolvedCollation Reverse Right Rint Round RoundCeil RoundFloor RowNumber ScalarSubquery
    SchemaOfCsv SchemaOfJson SchemaOfVariant SchemaOfVariantAgg Sec Second SecondWithFraction
    SecondWithFractionNanos SecondsToTimestamp Sentences Sequence Sha1 Sha2 ShiftLeft ShiftRight ShiftRightUnsigned
    Shuffle Signum Sin Sinh Size Skewness Slice SortArray SortOrder SoundEx SparkPartitionID SpecifiedWindowFrame
    SplitPart Sqrt Stack StartsWith StddevPop StddevSamp StringDecode StringInstr StringInstrWithOccurrence
    StringLPad StringLocate StringRPad StringRepeat StringReplace StringSpace StringSplit StringSplitSQL StringToMap
    StringTranslate StringTrim StringTrimBoth StringTrimLeft StringTrimRight StructsToCsv StructsToJson Substring
    SubstringIndex Subtract SubtractDates SubtractTimestamps Sum Tan Tanh TimeBucket TimestampAdd
    TimestampAddInterval TimestampAddYMInterval TimestampDiff ToBinary ToCharacter ToDegrees ToNumber ToRadians
    ToTimestamp ToUTCTimestamp ToUnixTimestamp ToVariantObject TransformKeys TransformValues TruncDate TruncInstant
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
